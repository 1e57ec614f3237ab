"""Generates the parts of the documents and of deploy/ that are made from other sources: `make docs`.

The tables of docs/reference/registry.md and docs/reference/settings.md come from the settings models, the table of
docs/reference/conformance.md from the checks. The alert rules of the Helm chart and of the Prometheus operator are
copies of deploy/prometheus. In a page, generated text stands between `<!-- made by … -->` and `<!-- end -->`.
"""

import re
from pathlib import Path

from app.conformance.examination import CHECKS
from app.conformance.proof import JUDGED
from app.settings.reference import table

PROJECT = Path(__file__).parents[1]
PAGES = ("docs/reference/registry.md", "docs/reference/settings.md", "docs/reference/conformance.md")
PLACE = re.compile(r"(<!-- made by `make docs`: (\w+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
RULES = ("recording.yml", "alerts.yml")
RULE_HEAD = """\
# Made by `make docs` from deploy/prometheus: for clusters with the Prometheus operator.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: rcp-gateway
  labels:
    app.kubernetes.io/name: rcp-gateway
spec:
  groups:
"""


def made() -> dict[str, str]:
    """Return the current text of every generated file, by its path in the project."""
    pages = {page: _renewed(_read(page)) for page in PAGES}
    rules = {name: _read(f"deploy/prometheus/{name}") for name in RULES}
    chart = {f"deploy/helm/rcp-gateway/rules/{name}": text for name, text in rules.items()}
    groups = "".join(text.split("groups:\n", 1)[1] for text in rules.values())
    return {
        **pages,
        "deploy/kubernetes/components/monitoring/prometheusrule.yaml": RULE_HEAD
        + re.sub(r"^(?=.)", "  ", groups, flags=re.MULTILINE),
        **chart,
    }


def _read(path: str) -> str:
    return (PROJECT / path).read_text(encoding="utf-8")


def _renewed(page: str) -> str:
    return PLACE.sub(lambda place: f"{place[1]}\n{checks() if place[2] == 'checks' else table(place[2])}\n", page)


def checks() -> str:
    """Return a table of every rule that `rcp-gateway conformance` checks."""
    head = "| check | rule | level | RCP | sentence |\n|---|---|---|---|---|\n"
    rows = [
        f"| `{one.id}` | {one.rule} | {one.level} | §{one.section} | {one.sentence.replace('|', chr(92) + '|')} |"
        for one in (*CHECKS, *JUDGED)
    ]
    return head + "\n".join(rows)


if __name__ == "__main__":
    for path, text in made().items():
        (PROJECT / path).write_text(text, encoding="utf-8")
