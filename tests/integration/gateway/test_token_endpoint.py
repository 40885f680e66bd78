"""The token endpoint over the wire, and what its tokens open."""

from __future__ import annotations

import base64
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from duobus.errors import ConfigurationError
from duobus.server.access.token_file import read_token_file
from duobus.server.composition import Server
from kits.gateway import in_loop, serving
from kits.http_client import Http, Reply, entry
from kits.issuer import NAME, document, ec_key, public, rsa_key, token

SECRET = "a secret of the tests"
SCOPE = "https://servicebus.azure.net//.default"
TOKENS = "/duobus/oauth2/v2.0/token"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LOGIN = {"grant_type": "client_credentials", "client_id": "owner", "client_secret": SECRET, "scope": SCOPE}


def token_file(folder: Path, issuers: list[dict[str, Any]] | None = None, **changes: Any) -> Path:
    clients = [
        {"ClientId": name, "ClientSecret": SECRET, "Roles": [name.title()]} for name in ("owner", "sender", "receiver")
    ]
    path = folder / "tokens.json"
    path.write_text(json.dumps({"Issuers": issuers or [], "Endpoint": {"Clients": clients} | changes}))
    return path


async def connected(server: Server, authorization: str | None = None) -> Http:
    return await Http.connect(server.port("http") or 0, authorization)


async def logged_in(http: Http, **changes: str) -> Reply:
    return await http.ask("POST", TOKENS, urlencode(LOGIN | changes), FORM)


@in_loop
async def test_a_client_logs_in_and_its_roles_decide_what_it_may(tmp_path: Path) -> None:
    async with serving(bearer_tokens=token_file(tmp_path)) as server:
        http = await connected(server)
        reply = await logged_in(http)
        found = json.loads(reply.body)
        assert (reply.status, found["token_type"], found["expires_in"]) == (200, "Bearer", 10_800)
        assert reply.header("Cache-Control") == "no-store"
        owner = {"Authorization": "Bearer " + found["access_token"]}
        found = json.loads((await logged_in(http, client_id="sender")).body)
        sender = {"Authorization": "Bearer " + found["access_token"]}
        assert (await http.ask("PUT", "/made", entry(), owner)).status == 201
        assert (await http.ask("PUT", "/other", entry(), sender)).status == 401
        assert (await http.ask("POST", "/q/messages", b"x", sender)).status == 201
        assert (await http.ask("DELETE", "/q/messages/head?timeout=0", b"", sender)).status == 401
        assert (await http.ask("DELETE", "/q/messages/head?timeout=5", b"", owner)).body == b"x"


@pytest.mark.parametrize(
    ("changes", "status", "error"),
    [
        ({"client_secret": SECRET + "x"}, 401, "invalid_client"),
        ({"client_secret": ""}, 401, "invalid_client"),
        ({"client_id": "nobody"}, 401, "invalid_client"),
        ({"client_id": "", "client_secret": "\0" * 16}, 401, "invalid_client"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"scope": "https://storage.azure.com/.default"}, 400, "invalid_scope"),
        ({"scope": ""}, 400, "invalid_scope"),
        ({"scope": "openid offline_access profile"}, 400, "invalid_scope"),
        ({"scope": f"{SCOPE} https://storage.azure.com/.default"}, 400, "invalid_scope"),
        ({"extra": "x" * 20_000}, 413, "invalid_request"),
    ],
)
def test_a_wrong_login_is_refused_without_quoting_it(
    tmp_path: Path, changes: dict[str, str], status: int, error: str
) -> None:
    @in_loop
    async def scenario() -> None:
        async with serving(bearer_tokens=token_file(tmp_path)) as server:
            reply = await logged_in(await connected(server), **changes)
            assert (reply.status, json.loads(reply.body)["error"]) == (status, error)
            assert SECRET not in reply.text

    scenario()


@in_loop
async def test_a_login_may_stand_in_the_header_and_no_field_twice(tmp_path: Path) -> None:
    async with serving(bearer_tokens=token_file(tmp_path)) as server:
        basic = "Basic " + base64.b64encode(f"owner:{SECRET.replace(' ', '+')}".encode()).decode()
        http = await connected(server, basic)
        form = urlencode({"grant_type": "client_credentials", "scope": SCOPE})
        assert (await http.ask("POST", TOKENS, form, FORM)).status == 200
        assert (await http.ask("POST", TOKENS, form + "&scope=x", FORM)).status == 400
        assert (await http.ask("POST", TOKENS, b"{}", {"Content-Type": "application/json"})).status == 400
        assert (await http.ask("POST", TOKENS, form, FORM | {"Authorization": "Basic !"})).status == 401


@in_loop
async def test_the_identity_of_a_machine_is_given_to_whoever_has_its_header(tmp_path: Path) -> None:
    async with serving(bearer_tokens=token_file(tmp_path)) as server:
        http = await connected(server)
        path = "/duobus/identity/token?api-version=2019-08-01&resource=https%3A%2F%2Fservicebus.azure.net%2F"
        reply = await http.ask("GET", path, b"", {"X-IDENTITY-HEADER": f"owner:{SECRET}"})
        found = json.loads(reply.body)
        assert (reply.status, found["token_type"], found["client_id"]) == (200, "Bearer", "owner")
        assert reply.header("Cache-Control") == "no-store"
        assert 10_700 < int(found["expires_on"]) - time.time() < 10_801
        http.authorization = "Bearer " + found["access_token"]
        assert (await http.ask("GET", "/q")).status == 200
        for header, target, status in (
            ("", path, 401),
            ("owner", path, 401),
            (f"owner:{SECRET}x", path, 401),
            (f"nobody:{SECRET}", path, 401),
            (f"owner:{SECRET}", path.replace("servicebus", "storage"), 400),
            (f"owner:{SECRET}", "/duobus/identity/token", 400),
        ):
            reply = await http.ask("GET", target, b"", {"X-IDENTITY-HEADER": header})
            assert reply.status == status
            assert SECRET not in reply.text


@in_loop
async def test_the_discovery_document_leads_to_the_keys_and_the_endpoint(tmp_path: Path) -> None:
    async with serving(bearer_tokens=token_file(tmp_path)) as server:
        http = await connected(server)
        for path in ("/duobus/v2.0/.well-known/openid-configuration", "/duobus/.well-known/openid-configuration"):
            found = json.loads((await http.ask("GET", path)).body)
            assert found["token_endpoint"] == "http://localhost" + TOKENS
            assert found["issuer"] == "http://localhost/duobus/v2.0"
        keys = json.loads((await http.ask("GET", found["jwks_uri"].removeprefix("http://localhost"))).body)["keys"]
        assert [sorted(key) for key in keys] == [["alg", "crv", "kid", "kty", "use", "x", "y"]]
        assert (await http.ask("GET", path, b"", {"Host": "evil/../x"})).status == 400


@in_loop
async def test_without_the_option_the_addresses_are_entities_like_any_other() -> None:
    async with serving() as server:
        reply = await logged_in(await connected(server))
        assert reply.status in (401, 404, 405)
        assert b"access_token" not in reply.body


@in_loop
async def test_tokens_outlive_a_restart_of_the_server(tmp_path: Path) -> None:
    chosen = {"bearer_tokens": token_file(tmp_path), "data": tmp_path / "data", "ephemeral": False}
    async with serving(**chosen) as server:
        text = json.loads((await logged_in(await connected(server))).body)["access_token"]
    assert (tmp_path / "data" / "tokens" / "signing-key.pem").stat().st_mode & 0o777 == 0o600
    async with serving(**chosen) as server:
        assert (await (await connected(server, f"Bearer {text}")).ask("GET", "/q")).status == 200


@in_loop
async def test_new_keys_in_a_file_are_read_when_a_token_asks_for_them(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(document(public(ec_key(), "ec")))
    chosen = token_file(tmp_path, [{"Issuer": NAME, "Keys": str(keys)}])
    async with serving(bearer_tokens=chosen) as server:
        assert server.tokens is not None
        http = await connected(server, f"Bearer {token()}")
        assert (await http.ask("GET", "/q")).status == 401
        keys.write_bytes(document(public(rsa_key(), "rsa")))
        assert await server.tokens.keys.refresh(0)
        assert (await http.ask("GET", "/q")).status == 200
        keys.write_bytes(b"no keys at all")
        assert not await server.tokens.keys.refresh(0)
        assert (await http.ask("GET", "/q")).status == 200


@in_loop
async def test_an_issuer_that_is_away_harms_no_token_in_hand_not_even_over_a_restart(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    async with AsyncExitStack() as stack:
        issuing = await stack.enter_async_context(serving(bearer_tokens=token_file(tmp_path / "one")))
        port = issuing.port("http")
        text = json.loads((await logged_in(await connected(issuing))).body)["access_token"]
        keys = f"http://127.0.0.1:{port}/duobus/discovery/v2.0/keys"
        trusted = {"Issuer": "http://localhost/duobus/v2.0", "Keys": keys}
        (tmp_path / "two").mkdir()
        (tmp_path / "two" / "tokens.json").write_text(json.dumps({"Issuers": [trusted]}))
        chosen: dict[str, Any] = {"bearer_tokens": tmp_path / "two" / "tokens.json", "ephemeral": False}
        chosen["data"] = tmp_path / "data"
        async with serving(**chosen) as server:
            assert (await (await connected(server, f"Bearer {text}")).ask("GET", "/q")).status == 200
            await stack.aclose()
            assert server.tokens is not None
            assert not await server.tokens.keys.refresh(0)
            assert (await (await connected(server, f"Bearer {text}")).ask("GET", "/q")).status == 200
            assert (await (await connected(server, "")).ask("GET", "/q")).status == 200
        async with serving(**chosen) as server:
            assert (await (await connected(server, f"Bearer {text}")).ask("GET", "/q")).status == 200
            with pytest.raises(ConnectionRefusedError):
                await Http.connect(port or 0)


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        ("{", "tokens.json"),
        ("{}", "neither"),
        ('{"Issuers": [{"Issuer": "x"}]}', "Keys"),
        ('{"Isuers": []}', "Isuers"),
        ('{"Issuers": [{"Issuer": "x", "Keys": "http://example.com/keys"}]}', "this machine"),
        ('{"Issuers": [{"Issuer": "x", "Keys": "https://localhost.example/keys"}]}', "this machine"),
        ('{"Issuers": [{"Issuer": "x", "Keys": "http://localhost@example.com/"}]}', "this machine"),
        ('{"Issuers": [{"Issuer": "x", "Keys": "a"}, {"Issuer": "x", "Keys": "b"}]}', "twice"),
        ('{"Endpoint": {"Clients": []}}', "Clients"),
        ('{"Endpoint": {"Clients": [{"ClientId": "a", "ClientSecret": "sh0rt-one", "Roles": ["Owner"]}]}}', "Secret"),
        (
            '{"Endpoint": {"Clients": [{"ClientId": "a", "ClientSecret": "sh0rt-one-but-longer", "Roles": ["God"]}]}}',
            "Roles",
        ),
        ('{"Endpoint": {"Tenant": "a/b", "Clients": []}}', "Tenant|Clients"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_without_secrets(tmp_path: Path, contents: str, text: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(contents)
    with pytest.raises(ConfigurationError, match=text) as refusal:
        read_token_file(path)
    assert "sh0rt" not in str(refusal.value)


def test_settings_do_not_show_secrets(tmp_path: Path) -> None:
    options = read_token_file(token_file(tmp_path))
    assert "***" in repr(options)
    assert SECRET not in repr(options)


@in_loop
async def test_scopes_of_openid_may_stand_beside_the_one_that_counts_as_go_asks_for_them(tmp_path: Path) -> None:
    async with serving(bearer_tokens=token_file(tmp_path)) as server:
        http = await connected(server)
        for scope in (f"{SCOPE} openid offline_access profile", f"openid  {SCOPE}", f"{SCOPE} {SCOPE}"):
            reply = await logged_in(http, scope=scope)
            assert reply.status == 200, reply.text
            owner = {"Authorization": "Bearer " + json.loads(reply.body)["access_token"]}
            assert (await http.ask("GET", "/q", b"", owner)).status == 200


@in_loop
async def test_the_path_of_ad_fs_gives_the_same_tokens_as_java_asks_for_them(tmp_path: Path) -> None:
    async with serving(bearer_tokens=token_file(tmp_path)) as server:
        http = await connected(server)
        scope = f"openid profile offline_access {SCOPE}"
        reply = await http.ask("POST", "/adfs/oauth2/token", urlencode(LOGIN | {"scope": scope}), FORM)
        assert reply.status == 200
        owner = {"Authorization": "Bearer " + json.loads(reply.body)["access_token"]}
        assert (await http.ask("PUT", "/made", entry(), owner)).status == 201
        wrong = await http.ask("POST", "/adfs/oauth2/token", urlencode(LOGIN | {"client_secret": "x"}), FORM)
        assert wrong.status == 401
