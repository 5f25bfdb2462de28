"""The doctor's findings as one HTML file: answers one below the other, interactive, and complete without a network.

``write_page(path, [Patient(name, diagnosis, verification, curve)])`` writes it.

``patient``   a network on the page, what was found and what to do; and the two built-in ones
``signals``, ``learning``  pictures of what was measured
``document``  the file as a whole; ``style.css`` and ``behaviour.js`` are put into it
"""

from foretrain.report.page.document import page, sections_of, write_page
from foretrain.report.page.patient import Patient, example_patients

__all__ = ["Patient", "example_patients", "page", "sections_of", "write_page"]
