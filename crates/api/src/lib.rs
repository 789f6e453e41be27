//! What goes over the wire: one type per request and answer, shared by the server and the client.
