//! A request's permit from its budget: taken once the request is complete, held until it is answered.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{
    App, Reject,
    shed::{Class, Permit},
};

/// Where the permit of one request is kept. A request with a body takes its permit when the body has arrived, so that one that
/// trickles in keeps nobody else out.
pub(crate) struct BudgetSlot {
    app: App,
    class: Class,
    permit: Mutex<Option<Permit>>,
}

impl BudgetSlot {
    pub fn new(app: App, class: Class) -> Arc<Self> {
        Arc::new(Self {
            app,
            class,
            permit: Mutex::default(),
        })
    }

    /// Takes it, unless it is taken already.
    pub fn take(&self) -> Result<(), Reject> {
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
    _slot: Arc<BudgetSlot>,
}

impl StreamBody {
    pub fn new(body: Body, revoked: CancellationToken, slot: Arc<BudgetSlot>) -> Self {
        Self {
            body,
            revoked: Box::pin(revoked.cancelled_owned()),
            _slot: slot,
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
