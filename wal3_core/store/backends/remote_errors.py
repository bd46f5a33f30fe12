"""What a remote store's error means and what to do about it, in one line.

obstore's texts hold the server's XML and its own Rust structures. Codes of S3:
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from obstore import exceptions

from wal3_core.errors import StoreDeniedError, UnavailableError

_KEYS = "correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile"
_EXPIRED = "the credentials have expired", "renew them (for a profile with SSO: `aws sso login`), or set others"
_TOKEN = "the session token is not valid", "correct AWS_SESSION_TOKEN, or unset it if the keys need none"
_CLOCK = (
    "the clock of this machine differs too much from the server's",
    "set this machine's clock, for instance by NTP",
)
_ACCESS = "access is denied", "give these credentials access to the bucket and the folder, or use others"
_REGION = "the bucket is in another region", "set AWS_DEFAULT_REGION, or add ?region=… to the store's URL"
_NO_BUCKET = "there is no such bucket", "create it, or correct the store's URL"
_NO_CONTAINER = "there is no such container", "create it, or correct the store's URL"
_CREDENTIALS = "no valid credentials", "set or renew the credentials of the store's provider"

# Refusals by the server's code: certainly not applied, and the same until an operator changes something.
_CODES = {
    "AccessDenied": _ACCESS,
    "AuthorizationHeaderMalformed": _REGION,
    "AuthenticationFailed": ("the account's key is not accepted", "correct the account and its key"),
    "ContainerNotFound": _NO_CONTAINER,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "IllegalLocationConstraintException": _REGION,
    "InvalidAccessKeyId": ("the server does not know the access key", _KEYS),
    "InvalidBucketName": ("the bucket cannot have this name", "correct the store's URL"),
    "InvalidToken": _TOKEN,
    "NoSuchBucket": _NO_BUCKET,
    "PermanentRedirect": _REGION,
    "RequestExpired": _CLOCK,
    "RequestTimeTooSkewed": _CLOCK,
    "SignatureDoesNotMatch": ("the secret key does not fit the access key", _KEYS),
    "TokenRefreshRequired": _EXPIRED,
}
# A list that is refused, or finds no bucket, has no exception class of its own; nor has an answer without a code.
_STATUSES = {"401": _CREDENTIALS, "403": _ACCESS, "404": _NO_BUCKET}
# Too many requests: S3's SlowDown and Azure's ServerBusy have the status 503, Google Cloud Storage answers 429.
_SLOW_DOWN = frozenset({"429", "503"})
# Certainly not applied, and pointless to retry: an operator has to change something.
_DENIED = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.NotSupportedError,
    exceptions.NotFoundError,
    exceptions.UnknownConfigurationKeyError,
    exceptions.InvalidPathError,
    FileNotFoundError,
    PermissionError,
)
_AUTHORITIES = "set AWS_CA_BUNDLE (on others than S3 SSL_CERT_FILE) to a file with"
_CERTIFICATES = {
    "CaUsedAsEndEntity": f"signed by itself: {_AUTHORITIES} the certificate of an authority that signs the server's",
    "Expired": "expired: renew it, or set this machine's clock",
    "NotValidForName": "for another host: name the host as the certificate does",
    "NotValidForNameContext": "for another host: name the host as the certificate does",
    "NotValidYet": "not valid yet: set this machine's clock",
    "UnknownIssuer": f"signed by an unknown authority: {_AUTHORITIES} that authority's certificate",
}

_STATUS = re.compile(r"status code: (\d{3}) ?([A-Za-z ]*)")
_REDIRECT = re.compile("redirect without LOCATION")
_TOKEN_REQUEST = re.compile("token request|External \\S+ credential provider")
_PROVIDER = re.compile(r"credential provider: (?:\w+: )?(.*)")
_URI = re.compile(r"uri: Some\(\s*(\S+?),?\s*\)")
_REFUSED = re.compile(r'"tcp connect error",\s*([^\s,]+),\s*Os \{\s*code: \d+,\s*kind: ConnectionRefused')
_DNS = re.compile(r'"dns error".*?error: "([^"]*)"', re.DOTALL)
# While a connection is made, and so before a request is sent.
_CONNECTING = re.compile(r"Error\(\s*Connect,")
_NO_TLS = re.compile(r"InvalidMessage\(\s*InvalidContentType")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)")
_TIMEOUT = re.compile(r"kind: Time(?:d)?[oO]ut|operation timed out")
_OS_MESSAGE = re.compile(r'message: "([^"]*)"')
_SHOWN_MAX = 300


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error of a remote store: ``text`` is one line without markup.

    ``denied`` says that the request was certainly not applied, and that retrying it is pointless.
    ``of_store`` says that the error has nothing to do with the path of the request.
    ``slow_down`` says that the server gets too many requests, ``no_bucket`` that the bucket is not there.
    """

    text: str
    denied: bool = False
    of_store: bool = True
    slow_down: bool = False
    no_bucket: bool = False

    def error(self, url: str, path: str) -> UnavailableError:
        """Make the error that names the store, and the path if the error depends on it."""
        place = f"store {url}" if self.of_store or not path else f"store {url}: {path}"
        message = f"{place}: {self.text}"
        if self.denied:
            return StoreDeniedError(message, slow_down=self.slow_down, no_bucket=self.no_bucket)
        return UnavailableError(message, slow_down=self.slow_down)


def trouble(error: Exception) -> Trouble:
    """Read an error of obstore."""
    answer, _, source = str(error).partition("Debug source:")
    answer = " ".join(answer.split())
    # What follows are the server's words, which decide by their code alone.
    ours = answer.partition("status code:")[0]
    if _TOKEN_REQUEST.search(ours):
        return _without_credentials(answer, source, error)
    if _REDIRECT.search(ours):
        return _advised(_REGION, "301 Moved Permanently")
    status = _STATUS.search(answer)
    if status is not None:
        return _answered(answer, status, error)
    denied = isinstance(error, _DENIED)
    return _unanswered(source) or Trouble(_cut(_without_provider(answer)), denied=denied, of_store=False)


def refused_settings(error: Exception) -> str:
    """Describe why a client of a store cannot be made."""
    return _cut(_without_provider(" ".join(str(error).partition("Debug source:")[0].split())).rstrip(":"))


def _advised(known: tuple[str, str], answer: str, advice: str = "") -> Trouble:
    no_bucket = known in (_NO_BUCKET, _NO_CONTAINER)
    text = f"{known[0]} ({answer}): {advice or known[1]}"
    return Trouble(text, denied=True, of_store=known is not _ACCESS, no_bucket=no_bucket)


def _without_credentials(answer: str, source: str, error: Exception) -> Trouble:
    """Describe that the keys, or a token for them, were not to be had."""
    provider = _PROVIDER.search(answer)
    status = _STATUS.search(answer)
    if provider is not None:
        found = _cut(provider[1])
    elif status is not None:
        found = f"the credentials' server answered {' '.join(status.groups()).strip()}"
    else:
        why = _unanswered(source)
        found = "the credentials' server did not answer" if why is None else why.text
    what, advice = _CREDENTIALS
    return Trouble(f"{what} ({found}): {advice}", denied=status is not None or isinstance(error, _DENIED))


def _answered(answer: str, status: re.Match[str], error: Exception) -> Trouble:
    """Describe an answer with an error status, and perhaps a document that says more."""
    code, message = _field(answer, "Code"), _field(answer, "Message")
    number, reason = status.groups()
    shown = f"{number} {code or reason.strip()}"
    region = _field(answer, "Region")
    # Not with a status that says that the server failed: it may have failed after it wrote.
    if code in _CODES and number < "500":
        known, advice = _CODES[code], ""
        if known is _REGION and region:
            advice = f"set AWS_DEFAULT_REGION={region}, or add ?region={region} to the store's URL"
        if known is _CLOCK and _field(answer, "ServerTime"):
            shown += f"; sent {_field(answer, 'RequestTime')}, received {_field(answer, 'ServerTime')}"
        return _advised(known, shown, advice)
    denied = isinstance(error, _DENIED)
    if number in _STATUSES and (code is None or not denied):
        return _advised(_STATUSES[number], shown)
    explained = f": {_cut(message)}" if message else ""
    return Trouble(
        f"the server answered {shown}{explained}",
        denied=denied or number in _STATUSES,
        of_store=False,
        slow_down=number in _SLOW_DOWN,
    )


def _unanswered(source: str) -> Trouble | None:
    """Describe a connection that failed, from obstore's own structures; None when they do not tell."""
    uri = _URI.search(source)
    host = "the server" if uri is None else urlsplit(uri[1]).netloc
    if refused := _REFUSED.search(source):
        return Trouble(
            f"connection refused: no server listens at {refused[1]}: start it, or correct the endpoint in the store's"
            f" URL or AWS_ENDPOINT_URL"
        )
    if unknown := _DNS.search(source):
        why = unknown[1].rpartition(": ")[2]
        return Trouble(f"unknown host {host} ({why}): correct the endpoint or the region, or the name service")
    if without_tls := _tls(source, host):
        return without_tls
    if _TIMEOUT.search(source):
        return Trouble(
            f"{host} did not answer in time: check the network, or the server's load; where the network is slow, give"
            f" requests more time: ?request_timeout_s=60 in the store's URL"
        )
    said = _OS_MESSAGE.findall(source)
    if "HttpError" in source:
        return Trouble(f"the connection to {host} broke{f' ({said[-1]})' if said else ''}: check the network")
    return None


def _tls(source: str, host: str) -> Trouble | None:
    """Describe a TLS connection that was not made: it will not be until the endpoint or a certificate is changed.

    One that broke later may have carried the whole request.
    """
    if not _CONNECTING.search(source):
        return None
    if _NO_TLS.search(source):
        return Trouble(f"{host} does not speak TLS: write http:// instead of https:// in the endpoint", denied=True)
    if certificate := _CERTIFICATE.search(source):
        found = _CERTIFICATES.get(certificate[1], f"not accepted ({certificate[1]})")
        return Trouble(f"the TLS certificate of {host} is {found}", denied=True)
    return None


def _without_provider(answer: str) -> str:
    return re.sub(r"^Generic \w+ error: ", "", answer)


def _field(answer: str, name: str) -> str | None:
    found = re.search(f"<{name}>([^<]*)</{name}>", answer)
    return None if found is None else _cut(found[1].strip())


def _cut(text: str) -> str:
    # The end of a long text has the cause.
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX // 2]} … {text[-_SHOWN_MAX // 2 :]}"
