"""The doctor's findings as one HTML file: interactive, and complete without a network.

``write_page(path, [Patient(name, diagnosis, verification, curve)])`` writes it. Its rooms are

``sections``  what the page tells, section by section; one is left out when its data are missing
``plots``     the pictures: what plotly draws, with caption and numbers
``examples``  two built-in networks to show it on
``document``  the file as a whole; ``style.css`` and ``behaviour.js`` are put into it
"""

from foretrain.report.page.document import page, write_page
from foretrain.report.page.patient import Patient

__all__ = ["Patient", "page", "write_page"]
