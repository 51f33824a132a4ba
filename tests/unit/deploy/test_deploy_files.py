"""Image, unit and chart: what they run exists, what they promise is in them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from go_template import Templates

from octavo.base.args import parse
from octavo.base.config import OctavoConfig, ServeConfig
from octavo.serve.table import ENDPOINTS

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy/helm/octavo"
PATHS = {endpoint.path for endpoint in ENDPOINTS}


def values(**changes: Any) -> dict[str, Any]:
    """The chart's values with some changed, as --set a.b=c would."""
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        target = found
        for name in parents:
            target = target[name]
        target[last] = value
    return found


def named(manifests: Iterable[dict[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """By kind; the claim of caches by its name."""
    found = {}
    for manifest in filter(None, manifests):
        name = manifest["metadata"]["name"]
        found[manifest["kind"] if name == "demo-octavo" else name] = manifest
    return found


def rendered(**changes: Any) -> dict[str, dict[str, Any]]:
    """Manifests as `helm template demo` gives them."""
    given = values(**changes)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    top = {
        "Values": given,
        "Release": {"Name": "demo", "Service": "Helm"},
        "Chart": {"AppVersion": chart["appVersion"]},
    }
    templates = Templates(top, (CHART / "templates/_helpers.tpl").read_text())
    texts = (templates.render(path.read_text()) for path in sorted(CHART.glob("templates/*.yaml")))
    return named(manifest for text in texts for manifest in yaml.safe_load_all(text))


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"gpu": 2, "args": ["--max-model-len=8k", "--gpu-memory-utilization=0.9"], "image__tag": "cuda"},
    {"persistence__enabled": False, "replicas": 3},
    {"cache__enabled": True, "gpu": 1},
    {"kernels": "/opt/kernels", "gpu": 1},
    {"kernels": "/opt/kernels", "cache__enabled": True},
    {"cache__enabled": True, "cache__existingClaim": "caches", "persistence__enabled": False},
    {"persistence__existingClaim": "models", "apiKey__existingSecret": "keys", "hubToken__existingSecret": "hub"},
    {"serviceMonitor__enabled": True, "serviceMonitor__existingSecret": "keys", "serviceMonitor__labels": {"a": "b"}},
    {"podDisruptionBudget__enabled": True, "networkPolicy__enabled": True, "networkPolicy__fromLabels": {"app": "web"}},
    {
        "tls__existingSecret": "papers",
        "serviceMonitor__enabled": True,
        "serviceMonitor__tlsConfig": {"serverName": "a"},
    },
    {"resources__limits": None, "gpu": 1},
    {"resources__limits": None, "resources__requests": None},
    {
        "env": [{"name": "A", "value": "b"}],
        "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        "volumeMounts": [{"name": "keys", "mountPath": "/etc/octavo/keys"}],
        "args": ["--api-key-file=/etc/octavo/keys/keys"],
    },
    {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "gpu", "operator": "Exists"}], "podAnnotations": {"c": "d"}},
)


@pytest.mark.parametrize("changes", VARIANTS)
def test_the_chart_renders(changes: dict[str, Any]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(values(**changes), schema)
    found = rendered(**changes)
    assert {"Deployment", "Service"} <= set(found)
    for manifest in found.values():
        assert manifest["metadata"]["name"] in ("demo-octavo", "demo-octavo-cache")
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo"
    pod = found["Deployment"]["spec"]["template"]
    selector = found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    assert found["Service"]["spec"]["selector"] == selector
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    (config,) = parse(container["args"][1:], (OctavoConfig,), "model")
    assert config.engine.model.model == values(**changes)["model"]
    assert config.serve.port == container["ports"][0]["containerPort"]


def test_the_chart_probes_and_drains() -> None:
    spec = rendered(shutdownTimeout=100, preStopDelay=7)["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in PATHS
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "7"]
    assert spec["terminationGracePeriodSeconds"] >= 100 + 7
    assert "--shutdown-timeout=100" in container["args"]


def test_the_chart_on_gpus_and_with_replicas() -> None:
    on_gpu = rendered(gpu=1)["Deployment"]["spec"]
    assert on_gpu["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert on_gpu["strategy"] == {"type": "Recreate"}
    on_cpu = rendered(persistence__enabled=False)["Deployment"]["spec"]
    assert "nvidia.com/gpu" not in on_cpu["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert on_cpu["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert "PersistentVolumeClaim" not in rendered(persistence__existingClaim="models")


def test_caches_go_with_the_pod_unless_they_have_a_claim() -> None:
    where = {"name": "scratch", "mountPath": "/var/cache/octavo", "subPath": "cache"}
    plain = rendered(persistence__enabled=False)
    assert where in plain["Deployment"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert "demo-octavo-cache" not in plain

    kept = rendered(persistence__enabled=False, cache__enabled=True, cache__storageClass="fast", cache__size="9Gi")
    pod = kept["Deployment"]["spec"]["template"]["spec"]
    assert {"name": "cache", "mountPath": "/var/cache/octavo"} in pod["containers"][0]["volumeMounts"]
    assert where not in pod["containers"][0]["volumeMounts"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "demo-octavo-cache"}} in pod["volumes"]
    claim = kept["demo-octavo-cache"]
    assert claim["kind"] == "PersistentVolumeClaim"
    assert claim["spec"]["resources"]["requests"]["storage"] == "9Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    assert kept["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}

    many = rendered(persistence__enabled=False, cache__enabled=True, cache__accessMode="ReadWriteMany")
    assert many["Deployment"]["spec"]["strategy"]["type"] == "RollingUpdate"
    own = rendered(cache__enabled=True, cache__existingClaim="caches")
    assert "demo-octavo-cache" not in own
    volumes = own["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "caches"}} in volumes


@pytest.mark.parametrize("kept", [False, True])
def test_kernels_of_the_image_are_copied_where_the_server_looks(kept: bool) -> None:
    pod = rendered(kernels="/opt/kernels", cache__enabled=kept)["Deployment"]["spec"]["template"]["spec"]
    (first,), (container,) = pod["initContainers"], pod["containers"]
    assert first["image"] == container["image"]
    assert first["command"] == ["cp", "-ru", "/opt/kernels/.", "/var/cache/octavo/"]
    assert first["volumeMounts"] == [m for m in container["volumeMounts"] if m["mountPath"] == "/var/cache/octavo"]


def test_a_certificate_is_mounted_and_probed() -> None:
    found = rendered(tls__existingSecret="papers", serviceMonitor__enabled=True)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (config,) = parse(container["args"][1:], (OctavoConfig,), "model")
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    assert config.serve.ssl_certfile == mount["mountPath"] + "/tls.crt"
    assert config.serve.ssl_keyfile == mount["mountPath"] + "/tls.key"
    assert {"name": "tls", "secret": {"secretName": "papers", "defaultMode": 0o440}} in pod["volumes"]
    probes = [container[name]["httpGet"]["scheme"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert set(probes) == {"HTTPS"}
    assert found["ServiceMonitor"]["spec"]["endpoints"][0]["scheme"] == "https"


def test_keys_come_from_secrets_alone() -> None:
    container = rendered(apiKey__existingSecret="keys")["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    (key,) = [each for each in container["env"] if each["name"] == "OCTAVO_API_KEY"]
    assert key["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "api-key"}
    assert not any("key" in argument for argument in container["args"])


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
@pytest.mark.parametrize("changes", VARIANTS)
def test_helm_renders_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump(values(**changes)))
    for command in (["lint", "--strict", CHART, "-f", given], ["template", "demo", CHART, "-f", given]):
        done = subprocess.run(["helm", *map(str, command)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert named(yaml.safe_load_all(done.stdout)) == rendered(**changes)


def stages() -> dict[str, list[str]]:
    """The image's stages by name, an instruction a line."""
    text = (ROOT / "deploy/docker/Dockerfile").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        if line.startswith("FROM "):
            lines = found.setdefault(line.rsplit(" ", 1)[1], [])
        lines.append(line)
    return found


def test_the_image() -> None:
    found = stages()
    assert list(found) == ["wheel", "base", "cpu", "cuda"]
    for target in ("cpu", "cuda"):
        assert found[target][0] == f"FROM base AS {target}"
        assert found[target][-1] == "USER 10001:10001" or target == "cuda"
        assert any(line == "USER 10001:10001" for line in found[target])
    base = "\n".join(found["base"])
    assert "HEALTHCHECK" in base
    assert "/health" in base
    assert "STOPSIGNAL SIGTERM" in base
    assert 'ENTRYPOINT ["tini", "--", "octavo"]' in base
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    lines = [line for stage in found.values() for line in stage]
    sources = [source for line in lines if line.startswith("COPY ") for source in line.split()[1:-1]]
    sources += [source for line in lines for source in re.findall(r"--mount=type=bind,source=([^, ]+)", line)]
    assert "requirements/demo.txt" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignored, f"{source} is not sent to the builder"


def test_variables_of_the_image_are_flags() -> None:
    known = {f"OCTAVO_{name.upper()}" for name in ServeConfig.__struct_fields__}
    text = (ROOT / "deploy/docker/Dockerfile").read_text() + (ROOT / "deploy/systemd/octavo.service").read_text()
    assert set(re.findall(r"\bOCTAVO_[A-Z_]+", text)) <= known


def test_compose() -> None:
    services = yaml.safe_load((ROOT / "deploy/docker/compose.yaml").read_text())["services"]
    assert services["octavo"]["build"]["target"] in stages()
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / "deploy/docker" / source).exists()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_prometheus_itself(tmp_path: Path) -> None:
    config = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    (tmp_path / "key").write_text("key")
    (tmp_path / "prometheus.yml").write_text(config.replace("/run/secrets/octavo-metrics-key", str(tmp_path / "key")))
    shutil.copy(ROOT / "deploy/prometheus/alerts.yml", tmp_path)
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_the_unit(tmp_path: Path) -> None:
    text = (ROOT / "deploy/systemd/octavo.service").read_text()
    assert "KillMode=mixed" in text
    grace = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert grace is not None
    assert int(grace[1]) > ServeConfig().shutdown_timeout
    unit = tmp_path / "octavo.service"
    unit.write_text(text.replace("/opt/octavo/bin/octavo", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "octavo.service" not in done.stderr, done.stderr
