"""Dashboard and alert rules ask only for series that ``/metrics`` has, by the labels it gives them."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from octavo.base.config import EngineConfig, ModelConfig, OctavoConfig, ServeConfig
from octavo.serve.calls import Service
from octavo.serve.limits import Limits

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy/grafana/octavo.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
ADDED = {"instance", "job", "le"}  # by Prometheus, and by its histograms


@cache
def served() -> dict[str, set[str]]:
    """Names of samples and their labels, of a server that has seen one of everything."""
    service = Service(OctavoConfig(engine=EngineConfig(model=ModelConfig(model="m"))), Limits(ServeConfig(), 1))
    metrics = service.metrics
    metrics.started({"load": 1.0}, {"block_size": "16"}, {"version": "0"})
    metrics.http("/v1/models", "GET", 200, 0.1)
    metrics.refused(429, "rate_limited", "key")
    metrics.usages("key", "adapter")
    service.close()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    board = [target["expr"] for panel in panels() for target in panel["targets"]]
    rules = [rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    variables = [each["query"]["query"] for each in json.loads(DASHBOARD.read_text())["templating"]["list"][1:]]
    return board + rules + variables


@pytest.mark.parametrize("expression", expressions())
def test_every_series_is_served(expression: str) -> None:
    known = served()
    names = re.findall(r"\b(?:octavo:|process_)\w+", expression)
    assert names or expression.startswith("up{")
    assert [name for name in names if name not in known] == []
    labels = {label for name in names for label in known[name]} | ADDED
    used = set(re.findall(r"(\w+)\s*(?:=~|=|!=)\s*\"", expression))
    for group in re.findall(r"\bby \(([^)]*)\)", expression):
        used.update(part.strip() for part in group.split(","))
    assert used <= labels, f"{used - labels} in {expression}"
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_is_whole() -> None:
    board = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} overlaps"
        taken |= cells
    for panel in panels():
        shown = re.findall(r"\{\{(\w+)\}\}", "".join(target["legendFormat"] for target in panel["targets"]))
        for label in shown:
            by = rf"\bby \([^)]*\b{label}\b"
            assert label in ADDED or any(re.search(by, each["expr"]) for each in panel["targets"])


def test_every_alert_says_what_to_do() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names)) >= 10
    for rule in rules:
        assert rule["labels"]["severity"] in {"page", "warn"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
