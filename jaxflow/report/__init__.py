"""Floor 10: tables and records that stand beside a result."""

from jaxflow.report.claims import Claim as Claim
from jaxflow.report.claims import Verdict as Verdict
from jaxflow.report.claims import claims_json as claims_json
from jaxflow.report.claims import claims_markdown as claims_markdown
from jaxflow.report.manifest import manifest as manifest
from jaxflow.report.outputs import refuse_existing as refuse_existing
from jaxflow.report.outputs import write_json as write_json
from jaxflow.report.study_html import study_html as study_html
from jaxflow.report.study_html import write_study_report as write_study_report
