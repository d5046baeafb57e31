# SPDX-License-Identifier: Apache-2.0
"""A client of netvmd's HTTP API on its Unix socket."""

import http.client
import json
import os
import socket
from contextlib import suppress
from urllib.parse import quote, urlencode

DEFAULT_SOCKET = "/run/netvm/api.sock"


class ApiError(Exception):
    """netvmd refused: `status` is the HTTP status, `diagnostics` what is wrong in a configuration, with its place.

    Its text has the message and all diagnostics, as `netvm` prints them."""

    def __init__(self, status, body):
        self.status = status
        self.message = body.get("message") or f"HTTP status {status}"
        self.diagnostics = body.get("diagnostics", [])
        super().__init__("\n".join([self.message, *map(_diagnostic, self.diagnostics)]))


def _diagnostic(one):
    """A diagnostic in one line: place, severity, message and remedy."""
    place = f"{one.get('file', '')}:{one.get('line', 0)}:{one.get('column', 0)}"
    remedy = f" ({one['help']})" if one.get("help") else ""
    return f"{place}: {one.get('severity', 'error')}: {one.get('message', '')}{remedy}"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("netvmd", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Asks netvmd, which replies in JSON: each method returns it as lists and dictionaries."""

    def __init__(self, path=None, timeout=30):
        self._path = path or os.environ.get("NETVM_API", DEFAULT_SOCKET)
        self._timeout = timeout

    def status(self):
        return self.request("GET", "/v1/status")

    def ports(self):
        return self.request("GET", "/v1/ports")

    def nfs(self):
        return self.request("GET", "/v1/nfs")

    def chains(self):
        return self.request("GET", "/v1/chains")

    def groups(self):
        return self.request("GET", "/v1/groups")

    def routers(self):
        return self.request("GET", "/v1/routers")

    def stats(self):
        return self.request("GET", "/v1/stats")

    def policy(self):
        return self.request("GET", "/v1/policy")

    def config(self):
        return self.request("GET", "/v1/config")

    def plan(self, toml):
        """What applying the configuration would change."""
        return self.request("POST", "/v1/plan", toml)

    def apply(self, toml, **how):
        """Applies a configuration; a change that fails leaves everything as it was."""
        return self.request("POST", "/v1/apply", toml, how)

    def restart(self, role):
        """Restarts every instance of an NF."""
        return self.request("POST", f"/v1/nfs/{quote(role, safe='')}/restart")

    def request(self, method, path, body=None, query=None):
        """Any request: a body that is not text is sent as JSON."""
        if query:
            path = f"{path}?{urlencode(query)}"
        headers = {}
        if body is not None and not isinstance(body, str):
            body, headers = json.dumps(body), {"Content-Type": "application/json"}
        connection = _Connection(self._path, self._timeout)
        try:
            # netvmd may refuse a request before it has read all of it: the answer says why.
            with suppress(BrokenPipeError):
                connection.request(method, path, body.encode() if body is not None else None, headers)
            reply = connection.getresponse()
            text = reply.read()
        except OSError as error:
            raise ConnectionError(f"netvmd does not answer on {self._path}: {error}") from error
        finally:
            connection.close()
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = {"message": text.decode(errors="replace")}
        if reply.status >= 400:
            raise ApiError(reply.status, answer if isinstance(answer, dict) else {})
        return answer
