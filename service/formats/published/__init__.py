"""Published training runs. A *row* is one of them as a JSON object of model, cluster, training and
measured, as a paper or a log states them."""

from service.formats.published.runs import Run, read, read_rows, shape_fields
from service.formats.published.software import Row, age_years, software_date

__all__ = ["Row", "Run", "age_years", "read", "read_rows", "shape_fields", "software_date"]
