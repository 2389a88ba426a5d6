"""Tables and records of a result."""

from jaxflow.report.outputs import manifest as manifest
from jaxflow.report.outputs import refuse_existing as refuse_existing
from jaxflow.report.outputs import write_json as write_json
from jaxflow.report.study_html import study_html as study_html
from jaxflow.report.study_html import write_study_report as write_study_report
