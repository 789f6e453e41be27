//! What goes along with a request: where it came from, who made it, and its permit from its budget, which is taken once
//! the request is complete and held until it is answered.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::{
    App, Reject,
    auth::{Caller, Origin},
    shed::{Class, Permit},
};

/// One request's, as the only extension that it gets from the frame: each has its price.
pub(crate) struct Along {
    pub app: App,
    pub class: Class,
    pub origin: Origin,
    /// Filled in by the authentication.
    pub caller: OnceLock<Caller>,
    permit: Mutex<Option<Permit>>,
}

impl Along {
    pub fn new(app: App, class: Class, origin: Origin) -> Arc<Self> {
        Arc::new(Self {
            app,
            class,
            origin,
            caller: OnceLock::new(),
            permit: Mutex::default(),
        })
    }

    /// Takes the permit, unless it is taken already. A request with a body takes it when the body has arrived, so
    /// that one that trickles in keeps nobody else out.
    pub fn admit(&self) -> Result<(), Reject> {
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        if permit.is_none() {
            let entered = self.app.parts().shed.enter(self.class);
            let counted =
                entered.inspect_err(|_| self.app.metrics().turned_away(self.class.as_str()));
            *permit = Some(counted?);
        }
        Ok(())
    }
}

/// The body of a stream: keeps its permit while it lives, and ends with the credential it was opened with.
pub(crate) struct StreamBody {
    body: Body,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
    _along: Arc<Along>,
}

impl StreamBody {
    pub fn new(body: Body, along: Arc<Along>) -> Self {
        let revoked = along.caller.get().map(|caller| caller.revoked.clone());
        Self {
            body,
            revoked: Box::pin(revoked.unwrap_or_default().cancelled_owned()),
            _along: along,
        }
    }
}

impl hyper::body::Body for StreamBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.revoked.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
