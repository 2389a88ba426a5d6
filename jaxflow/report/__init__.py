"""Floor 10: tables and records that stand beside a result."""

from jaxflow.report.claims import Claim as Claim
from jaxflow.report.claims import claims_json as claims_json
from jaxflow.report.claims import claims_markdown as claims_markdown
from jaxflow.report.claims import with_evidence as with_evidence
from jaxflow.report.manifest import manifest as manifest
from jaxflow.report.outputs import refuse_existing as refuse_existing
from jaxflow.report.outputs import write_json as write_json
from jaxflow.report.study_html import study_html as study_html
from jaxflow.report.study_html import write_study_report as write_study_report
from jaxflow.report.verdicts import Evidence as Evidence
from jaxflow.report.verdicts import Rate as Rate
from jaxflow.report.verdicts import Verdict as Verdict
from jaxflow.report.verdicts import bounded_evidence as bounded_evidence
from jaxflow.report.verdicts import common_rate as common_rate
from jaxflow.report.verdicts import count_evidence as count_evidence
from jaxflow.report.verdicts import decide as decide
from jaxflow.report.verdicts import evidence_json as evidence_json
from jaxflow.report.verdicts import fit as fit
