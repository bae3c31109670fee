"""What `deploy/` holds is right: by the official schemas, and by the product itself. Every command in it
parses with the real command line, every project is loaded by the real loader with the environment of its
container, and every address leads to something that is there.

No container is started. `test_compose_runs.py` runs the services of the compose file as processes.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

from tidemill import eventtime
from tidemill.cli.main import every_command
from tidemill.config import Project, load_project
from tidemill.engine.session import MIN_JAVA
from tidemill.server import health_routes

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE_SCHEMA = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
KUBERNETES_VERSION = "1.33"
PAGE = (ROOT / "docs" / "deploy.md").read_text()
PARTS = ("gateway", "runner", "builder")
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)(?::\?[^}]*)?\}")

Document = dict[str, Any]


def parse(words: list[str]) -> str:
    """The command that the words are, checked by the real command line with all its options."""
    command: Any = typer.main.get_command(every_command())
    context = command.make_context("tidemill", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return str(context.command_path)


def project_of(file: Path, environment: Mapping[str, str]) -> Project:
    return load_project(file, eventtime.registered(), environment)


# -- the image


def dockerfile() -> list[tuple[str, str]]:
    """Instructions with their arguments."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def of(instruction: str) -> list[str]:
    return [rest for word, rest in dockerfile() if word == instruction]


def test_the_image_is_built_from_files_that_are_there() -> None:
    shown = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {word for rest in of("COPY") if "--from" not in rest for word in rest.split()[:-1]}
    assert copied == shown
    assert all((ROOT / name).exists() for name in copied)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {declared["project"]["readme"], *declared["project"]["license-files"], "pyproject.toml"}
    wheel = declared["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed |= {path.split("/")[0] for path in wheel["packages"]}
    assert needed < copied
    assert re.search(r"^hatchling==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def test_the_image_has_a_python_and_a_java_that_tidemill_runs_on() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    for image in of("FROM"):
        version = re.match(r"python:(3\.\d+)-slim", image)
        assert version
        assert f"Programming Language :: Python :: {version[1]}" in declared
    (java,) = re.findall(r"openjdk-(\d+)-jre-headless", (DEPLOY / "Dockerfile").read_text())
    assert int(java) >= MIN_JAVA


def test_the_commands_of_the_image_are_commands() -> None:
    (entry,), (default,) = of("ENTRYPOINT"), of("CMD")
    assert json.loads(entry) == ["tidemill"]
    assert parse(json.loads(default)) == "tidemill up"
    ran = [step.strip() for rest in of("RUN") for step in rest.split("&&") if "tidemill " in step]
    found = [parse(shlex.split(step)[1:]) for step in ran if step.startswith("tidemill ")]
    assert found == ["tidemill init", "tidemill ingest", "tidemill run"]


# -- compose


@pytest.fixture(scope="module")
def compose() -> Document:
    return dict(yaml.safe_load(COMPOSE.read_text()))


def test_the_compose_file_is_one(compose: Document) -> None:
    schema = json.loads(COMPOSE_SCHEMA.read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    validator.validate(compose)
    broken = {**compose, "services": {"gateway": {**compose["services"]["gateway"], "comand": []}}}
    assert not validator.is_valid(broken)


def test_the_page_names_the_variables_of_the_compose_file() -> None:
    for name in set(VARIABLE.findall(COMPOSE.read_text())):
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("part", PARTS)
def test_a_service_runs_a_command_on_a_project_that_loads(compose: Document, part: str) -> None:
    service = compose["services"][part]
    commands = {"gateway": "tidemill serve", "runner": "tidemill run", "builder": "tidemill build"}
    assert parse(service["command"]) == commands[part]
    mounts = dict(volume.split(":")[:2][::-1] for volume in service["volumes"])
    (folder,) = of("WORKDIR")[1:]
    project = project_of(COMPOSE.parent / mounts[f"{folder}/tidemill.yaml"], service["environment"])
    assert mounts[project.bucket.folder] in compose["volumes"]
    assert project.builder.concurrency == (0 if part == "runner" else 2)
    assert service["build"]["dockerfile"] == "deploy/Dockerfile"
    assert (COMPOSE.parent / service["build"]["context"]).resolve() == ROOT
    assert set(service["depends_on"]) == {"postgres", "s3"}


def test_each_service_has_a_folder_of_its_own(compose: Document) -> None:
    used = [volume.split(":")[0] for one in compose["services"].values() for volume in one["volumes"]]
    named = [name for name in used if not name.startswith(".")]
    assert sorted(named) == sorted(compose["volumes"])


def test_the_addresses_in_the_compose_file_lead_to_its_services(compose: Document) -> None:
    services = compose["services"]
    project = project_of(COMPOSE.parent / "tidemill.yaml", {})
    assert project.state.url is not None
    state, server = urlsplit(project.state.url.get_secret_value()), services["postgres"]["environment"]
    assert state.hostname == "postgres"
    assert state.username == server["POSTGRES_USER"]
    assert state.path == f"/{server['POSTGRES_DB']}"
    assert not state.password
    written = yaml.safe_load((COMPOSE.parent / "tidemill.yaml").read_text())
    bucket = urlsplit(written["warehouse"]).netloc
    s3 = services["s3"]
    assert [volume.split(":")[1] for volume in s3["volumes"]] == [f"{s3['command'][-1]}/{bucket}"]
    for part in PARTS:
        own = services[part]["environment"]
        endpoint = urlsplit(own["AWS_ENDPOINT_URL"])
        assert endpoint.hostname == "s3"
        assert s3["command"][s3["command"].index("--port") + 1] == f":{endpoint.port}"
        for mine, theirs, given in (
            ("AWS_ACCESS_KEY_ID", s3, "ROOT_ACCESS_KEY"),
            ("AWS_SECRET_ACCESS_KEY", s3, "ROOT_SECRET_KEY"),
            ("PGPASSWORD", services["postgres"], "POSTGRES_PASSWORD"),
        ):
            assert own[mine] == theirs["environment"][given]


def test_the_gateway_is_published_on_this_machine_only_and_watched(compose: Document) -> None:
    gateway = compose["services"]["gateway"]
    port = project_of(COMPOSE.parent / "tidemill.yaml", {}).gateway.port
    assert gateway["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert of("EXPOSE") == [str(port)]
    address = urlsplit(re.findall(r'"(http:[^"]+)"', gateway["healthcheck"]["test"][-1])[0])
    assert address.port == port
    assert address.path in routes()
    compile(gateway["healthcheck"]["test"][-1], "healthcheck", "exec")


def routes() -> set[str]:
    return {route.path for route in health_routes.router().routes}  # type: ignore[attr-defined]


# -- Kubernetes


def kubernetes() -> Iterator[Document]:
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    for name in listed:
        yield from yaml.safe_load_all((KUBERNETES / name).read_text())


MANIFESTS = list(kubernetes())
WORKLOADS = [one for one in MANIFESTS if "template" in one["spec"]]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_a_manifest_is_one(manifest: Document) -> None:
    kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
    broken = {**manifest, "spec": {**manifest["spec"], "no_such_key": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES_VERSION, strict=True)


def test_the_kustomization_has_all_files_of_its_folder() -> None:
    held = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    (made,) = held["configMapGenerator"]
    named = {*held["resources"], *made["files"], "kustomization.yaml"}
    assert named == {path.name for path in KUBERNETES.iterdir()}
    (image,) = held["images"]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert image["newTag"] == version
    assert {one["image"] for work in WORKLOADS for one in containers(work)} == {image["name"]}


def containers(work: Document) -> list[Document]:
    return list(work["spec"]["template"]["spec"]["containers"])


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda one: one["metadata"]["name"])
def test_a_pod_runs_a_command_on_a_project_that_loads(work: Document) -> None:
    (container,) = containers(work)
    commands = {"gateway": "tidemill serve", "runner": "tidemill run", "builder": "tidemill build"}
    assert parse(container["args"]) == commands[container["name"]]
    environment = {one["name"]: one["value"] for one in container.get("env", [])}
    project = project_of(KUBERNETES / "tidemill.yaml", environment)
    assert project.builder.concurrency == (0 if container["name"] == "runner" else 2)
    pod = work["spec"]["template"]["spec"]
    claims = [one["metadata"]["name"] for one in work["spec"].get("volumeClaimTemplates", [])]
    volumes = {*claims, *(one["name"] for one in pod["volumes"])}
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert set(mounts.values()) == volumes
    assert set(mounts) == {of("WORKDIR")[1], project.bucket.folder}
    user = int(of("USER")[0].split(":")[0])
    assert pod["securityContext"]["runAsUser"] == user
    (secret,) = container["envFrom"]
    assert f"kubectl create secret generic {secret['secretRef']['name']} " in PAGE


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda one: one["metadata"]["name"])
def test_selectors_find_the_pods_they_are_for(work: Document) -> None:
    labels = work["spec"]["template"]["metadata"]["labels"]
    assert work["spec"]["selector"]["matchLabels"] == labels
    others = [one["spec"]["template"]["metadata"]["labels"] for one in WORKLOADS if one is not work]
    assert labels not in others


def test_what_watches_and_reaches_a_gateway_uses_its_port_and_its_routes() -> None:
    (gateway,) = (one for one in WORKLOADS if one["kind"] == "StatefulSet")
    (container,) = containers(gateway)
    (port,) = container["ports"]
    assert port["containerPort"] == project_of(KUBERNETES / "tidemill.yaml", {}).gateway.port
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == port["name"]
        assert asked["path"] in routes()
    services = {one["metadata"]["name"]: one["spec"] for one in MANIFESTS if one["kind"] == "Service"}
    assert gateway["spec"]["serviceName"] in services
    for service in services.values():
        assert service["selector"] == gateway["spec"]["template"]["metadata"]["labels"]
        assert [one["targetPort"] for one in service["ports"]] == [port["name"]]


# -- the page


def test_the_commands_of_the_page_name_what_is_there(compose: Document) -> None:
    """Lines that run `tidemill` in a container: the container is there, and the command parses."""
    names = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in WORKLOADS}
    lines = re.findall(r"^(docker compose|kubectl) .*?exec (\S+) (?:-- )?tidemill (.*)$", PAGE, re.MULTILINE)
    assert {tool for tool, _, _ in lines} == {"docker compose", "kubectl"}
    for tool, target, words in lines:
        assert target in (compose["services"] if tool == "docker compose" else names), target
        parse(shlex.split(words))
    assert "docker compose -f deploy/compose/compose.yaml up" in PAGE
    assert "kubectl apply -k deploy/kubernetes" in PAGE
