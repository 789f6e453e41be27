"""A camera for tests: serves one video over RTSP (interleaved) to whoever knows its login.

usage: rtsp_server.py VIDEO USER PASSWORD; prints its port."""
import base64, os, socket, subprocess, sys, tempfile, threading

video, user, password = sys.argv[1:4]
wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
folder = tempfile.mkdtemp()
packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
packets.bind(("127.0.0.1", 0))
sdp_file = os.path.join(folder, "sdp")
source = subprocess.Popen(
    ["ffmpeg", "-v", "error", "-nostdin", "-re", "-stream_loop", "-1", "-i", video, "-an", "-c:v", "libx264",
     "-preset", "ultrafast", "-g", "5", "-f", "rtp", "-sdp_file", sdp_file, f"rtp://127.0.0.1:{packets.getsockname()[1]}?rtcpport=9"],
    stdout=subprocess.DEVNULL)
viewers, lock = [], threading.Lock()


def forward():
    while True:
        packet = packets.recv(65536)
        framed = b"$\0" + len(packet).to_bytes(2, "big") + packet
        with lock:
            for viewer in list(viewers):
                try:
                    viewer.sendall(framed)
                except OSError:
                    viewers.remove(viewer)


def serve(connection):
    stream = connection.makefile("rb")
    while True:
        head = []
        while (line := stream.readline()) not in (b"\r\n", b""):
            if line[:1] == b"$":  # RTCP from the viewer
                continue
            head.append(line.decode("latin-1").strip())
        if not head:
            return
        verb, url = head[0].split()[:2]
        fields = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if ": " in line)}
        status, more, body = "200 OK", "", ""
        if verb != "OPTIONS" and fields.get("authorization") != wanted:
            status, more = "401 Unauthorized", 'WWW-Authenticate: Basic realm="camera"\r\n'
        elif verb == "DESCRIBE":
            body = open(sdp_file).read().split("SDP:\n")[-1] + "a=control:track0\r\n"
            more = f"Content-Type: application/sdp\r\nContent-Base: {url}/\r\n"
        elif verb == "SETUP":
            more = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n"
        reply = f"RTSP/1.0 {status}\r\nCSeq: {fields.get('cseq', 0)}\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}"
        connection.sendall(reply.encode())
        if verb == "PLAY" and status == "200 OK":
            with lock:
                viewers.append(connection)


threading.Thread(target=forward, daemon=True).start()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
try:
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
finally:
    source.kill()
