"""Drives a server with the client that openapi-python-client generated, unmodified.

Usage: drive.py URL CREDENTIAL, with the generated package on PYTHONPATH. Prints one line per step.
"""

import sys
import time

from leasehold_client import AuthenticatedClient
from leasehold_client.api.cameras import cameras_create, cameras_show, cameras_update
from leasehold_client.api.leases import leases_acquire, leases_list, leases_release, leases_renew, leases_show
from leasehold_client.api.sessions import sessions_heartbeat, sessions_intent, sessions_show
from leasehold_client.models import (
    AcquireRequest,
    Camera,
    CameraDocument,
    IntentAnswer,
    IntentRequest,
    Lease,
    Problem,
    RenewRequest,
    SessionHeartbeat,
    SessionView,
)


def expect(kind, answer, step):
    assert isinstance(answer, kind), f"{step}: {answer!r}"
    print(f"{step}: ok")
    return answer


def leases(client):
    wanted = AcquireRequest(kind="job", id="generated", holder="python", ttl_seconds=30)
    lease = expect(Lease, leases_acquire.sync(client=client, body=wanted), "acquire")
    assert lease.token > 0 and lease.incarnation, lease
    other = AcquireRequest(kind="job", id="generated", holder="somebody-else")
    refused = expect(Problem, leases_acquire.sync(client=client, body=other), "refused")
    assert refused.code == "LEASE_ALREADY_HELD", refused
    renewed = expect(Lease, leases_renew.sync(lease.lease_id, client=client, body=RenewRequest()), "renew")
    assert renewed.token == lease.token and renewed.expires_at >= lease.expires_at, renewed
    listed = leases_list.sync(client=client, kind="job")
    assert [it.lease_id for it in listed.leases] == [lease.lease_id], listed
    assert leases_release.sync(lease.lease_id, client=client).success
    ended = expect(Lease, leases_show.sync(lease.lease_id, client=client), "release")
    assert ended.status == "released", ended


def session(client):
    start = IntentRequest(service_ref="1:0:1:445D:453:1:C00000:0:0:0:", profile="virtual")
    accepted = expect(IntentAnswer, sessions_intent.sync(client=client, body=start), "intent")
    deadline = time.monotonic() + 20
    while True:
        view = sessions_show.sync(accepted.session_id, client=client)
        if view.state == "running":
            break
        assert time.monotonic() < deadline, view
        time.sleep(0.05)
    expect(SessionView, view, "session")
    beat = sessions_heartbeat.sync(accepted.session_id, client=client)
    assert expect(SessionHeartbeat, beat, "heartbeat").acknowledged
    stop = IntentRequest(type_="stream.stop", session_id=accepted.session_id)
    expect(IntentAnswer, sessions_intent.sync(client=client, body=stop), "stop")


def camera(client):
    document = CameraDocument(camera_uuid="generated", rtsp_url="rtsp://127.0.0.1/front")
    made = expect(Camera, cameras_create.sync("t", "s", client=client, body=document), "camera")
    change = CameraDocument(min_score=0.5)
    changed = expect(Camera, cameras_update.sync("t", "s", "generated", client=client, body=change), "camera update")
    assert changed.config_version != made.config_version, changed
    expect(Camera, cameras_show.sync("t", "s", "generated", client=client), "camera show")
    wrong = CameraDocument(camera_uuid="wrong", rtsp_url="ftp://127.0.0.1/x", min_score=7)
    problem = expect(Problem, cameras_create.sync("t", "s", client=client, body=wrong), "wrong camera")
    assert {it.field for it in problem.errors} == {"rtsp_url", "min_score"}, problem


def main():
    url, credential = sys.argv[1:]
    with AuthenticatedClient(base_url=url, token=credential, timeout=20) as client:
        leases(client)
        session(client)
        camera(client)


main()
