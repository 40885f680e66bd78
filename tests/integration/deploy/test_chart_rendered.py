"""What helm makes of the chart: manifests whose commands a server takes, with files as the manifests mount them.

``make chart`` builds helm and runs these tests; nothing here was run on a cluster.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.clock import Clock, Entropy
from duobus.gateway.tls import SelfSigned

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "duobus"
HELM = os.environ.get("DUOBUS_HELM", "")

pytestmark = pytest.mark.skipif(not HELM, reason="there is no helm here; make chart builds one")


def helm(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


def rendered(*words: object, release: str = "bus") -> list[dict[str, Any]]:
    done = helm("template", release, CHART, "--namespace", "shop", "--kube-version", "1.33.0", *words)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = of_kind(documents, "StatefulSet")
    (only,) = found["spec"]["template"]["spec"]["containers"]
    return only


def mounted(documents: list[dict[str, Any]], folder: Path) -> list[str]:
    """Lay files out as the volumes of the pod do, and return its arguments with the places of these."""
    pod = of_kind(documents, "StatefulSet")[0]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    made = {
        document["metadata"]["name"]: document for document in documents if document["kind"] in ("ConfigMap", "Secret")
    }
    tls = SelfSigned(folder / "authority", Clock(), Entropy()).ensure(())
    existing = {
        "duobus-tls": {
            "tls.crt": tls.certificate.read_text(),
            "tls.key": tls.key.read_text(),
            "ca.crt": tls.authority.read_text() if tls.authority else "",
        },
        "duobus-metrics": {"token": "a-token-of-the-tests-of-the-chart"},
        "duobus-entities": {"Config.json": '{"UserConfig": {"Namespaces": []}}'},
    }
    words = list(container(documents)["args"])
    for mount in container(documents)["volumeMounts"]:
        place = folder / mount["mountPath"].lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        volume = volumes.get(mount["name"], {})
        name = volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name")
        if name:
            files = made[name].get("stringData") or made[name]["data"] if name in made else existing[name]
            for file, text in files.items():
                (place / file).write_text(text)
        words = [word.replace(f"={mount['mountPath']}", f"={place}") for word in words]
    return [word.replace("$(POD_NAME)", "bus-duobus-0").replace("$(POD_NAMESPACE)", "shop") for word in words]


@pytest.mark.parametrize("values", [None, "one.yaml", "several.yaml"])
def test_helm_finds_nothing_wrong_and_a_server_takes_what_the_pod_gives_it(values: str | None, tmp_path: Path) -> None:
    words = ["-f", CHART / "ci" / values] if values else []
    linted = helm("lint", "--strict", CHART, *words)
    assert linted.returncode == 0, linted.stdout
    documents = rendered(*words)
    result = CliRunner().invoke(main, [*mounted(documents, tmp_path), "--check-config"])
    assert result.exit_code == 0, result.output
    if values == "one.yaml":
        assert "namespace: shop, with queues: 1, topics: 0, access rules of the configuration: 1" in result.output
    if values == "several.yaml":
        assert "address for the other servers: bus-duobus-0.bus-duobus-servers.shop.svc" in result.output


def test_several_servers_have_names_of_their_own_and_go_one_at_a_time() -> None:
    documents = rendered("-f", CHART / "ci" / "several.yaml")
    (servers,) = of_kind(documents, "StatefulSet")
    (budget,) = of_kind(documents, "PodDisruptionBudget")
    assert (servers["spec"]["replicas"], budget["spec"]["maxUnavailable"]) == (3, 1)
    (headless,) = [one for one in of_kind(documents, "Service") if one["spec"].get("clusterIP") == "None"]
    assert servers["spec"]["serviceName"] == headless["metadata"]["name"]
    labels = servers["spec"]["template"]["metadata"]["labels"]
    for one in (*of_kind(documents, "Service"), budget):
        selector = one["spec"]["selector"]
        assert (selector.get("matchLabels") or selector).items() <= labels.items()
    # The password is in the environment, from a secret, and on no command line.
    (password,) = [one for one in container(documents)["env"] if one["name"] == "PGPASSWORD"]
    assert password["valueFrom"]["secretKeyRef"] == {"name": "postgres-duobus", "key": "password"}


def test_one_server_has_no_budget_and_no_catalog() -> None:
    documents = rendered()
    assert of_kind(documents, "PodDisruptionBudget") == []
    assert not any("--join" in word for word in container(documents)["args"])
    (servers,) = of_kind(documents, "StatefulSet")
    assert [claim["metadata"]["name"] for claim in servers["spec"]["volumeClaimTemplates"]] == ["data"]


def test_a_monitor_looks_where_the_metrics_are_with_their_token() -> None:
    documents = rendered("-f", CHART / "ci" / "one.yaml")
    (monitor,) = of_kind(documents, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    assert endpoint["authorization"]["credentials"] == {"name": "duobus-metrics", "key": "token"}
    seen = [
        service
        for service in of_kind(documents, "Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    assert len(seen) == 1
    assert of_kind(rendered(), "ServiceMonitor") == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--set", "replicas=2"], "cluster.enabled"),
        (["--set", "cluster.enabled=true"], "cluster.url"),
        (["--set", "cluster.caKey=ca.crt"], "tls.existingSecret"),
        (["--set", "config.a=1,existingConfigSecret=b"], "exclude each other"),
        (["--set", "settings.port=5"], "port"),
        (["--set", "cluster.url=postgresql://u:secret@h/d"], "/cluster/url"),
        (["--set", "colour=red"], "colour"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(words: list[str], named: str) -> None:
    done = helm("template", "bus", CHART, "--kube-version", "1.33.0", *words)
    assert done.returncode != 0
    assert named in done.stderr


def test_two_releases_side_by_side_share_no_name() -> None:
    names = [
        {(document["kind"], document["metadata"]["name"]) for document in rendered(release=release)}
        for release in ("bus", "other")
    ]
    assert names[0] & names[1] == set()


def test_a_changed_setting_starts_the_pods_anew_and_the_same_settings_do_not() -> None:
    def annotations(*words: object) -> dict[str, str]:
        found: dict[str, str] = of_kind(rendered(*words), "StatefulSet")[0]["spec"]["template"]["metadata"][
            "annotations"
        ]
        return found

    assert annotations() == annotations()
    assert annotations() != annotations("--set", "settings.spread=true")


def test_the_probes_say_yes_of_a_server_that_was_started_as_the_pod_is(tmp_path: Path) -> None:
    documents = rendered()
    pod = container(documents)
    words = [re.sub(r"^--(port|http-port)=.*", r"--\1=0", word) for word in mounted(documents, tmp_path)]
    words = [word.replace("--host=0.0.0.0", "--host=127.0.0.1") for word in words]
    ready = tmp_path / "ready.json"
    for _ in range(2):
        # The second time on the data of the first, as after a restart of the pod.
        ready.unlink(missing_ok=True)
        server = subprocess.Popen(
            [sys.executable, "-m", *pod["command"], *words, "--ready-file", str(ready), "--drain-delay=0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 60
            while not ready.exists():
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            url = json.loads(ready.read_text())["admin_url"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                with urllib.request.urlopen(url + pod[probe]["httpGet"]["path"], timeout=60) as answer:
                    assert answer.status == 200
        finally:
            server.terminate()
            assert server.wait(60) == 0
