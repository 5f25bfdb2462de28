"""What is trained and how: the user's model and data, checked and copied, and the copy that is measured."""

from foretrain.doctor.setup.case import Case, Setup

__all__ = ["Case", "Setup"]
