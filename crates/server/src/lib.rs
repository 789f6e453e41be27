//! The doors: what the outside world can ask over HTTP.
