// SPDX-License-Identifier: Apache-2.0
//! Bodies of requests and replies. In: a body of HTTP. Out: the same, with time limits, or with the knowledge of its
//! end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body as Whole, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::slots::{ActiveRequest, Activity};

/// Time limits for the body of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyTimeouts {
    /// For each next part of it.
    pub(super) next: Duration,
    /// For all of it.
    pub(super) all: Duration,
}

/// A request's body that ends with an error if it does not come in time.
#[derive(Debug)]
pub(super) struct TimedBody<B> {
    body: B,
    timeouts: BodyTimeouts,
    deadline: Instant,
    /// The end of the wait, while a part is waited for.
    wait: Option<Pin<Box<Sleep>>>,
    activity: Arc<Activity>,
    is_late: Arc<AtomicBool>,
}

impl<B> TimedBody<B> {
    /// `is_late` becomes true when the body does not come in time.
    pub(super) fn new(
        body: B,
        timeouts: BodyTimeouts,
        activity: Arc<Activity>,
        is_late: Arc<AtomicBool>,
    ) -> Self {
        Self { body, timeouts, deadline: Instant::now() + timeouts.all, wait: None, activity, is_late }
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<axum::BoxError>,
{
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.wait = None;
            this.activity.set_lacks_body(false);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        this.activity.set_lacks_body(true);
        let until = this.deadline.min(Instant::now() + this.timeouts.next);
        let wait = this.wait.get_or_insert_with(|| Box::pin(sleep_until(until)));
        ready!(wait.as_mut().poll(context));
        this.is_late.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err("it did not come in time".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A reply's body. The request ends with it.
#[derive(Debug)]
pub(super) struct ReplyBody {
    body: Whole,
    _request: ActiveRequest,
}

impl ReplyBody {
    pub(super) fn of(body: Whole, request: ActiveRequest) -> Whole {
        Whole::new(Self { body, _request: request })
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_does_not_come_ends() {
        let timeouts =
            |next, all| BodyTimeouts { next: Duration::from_millis(next), all: Duration::from_millis(all) };
        let read = async |timeouts, parts: usize| {
            let parts = (0..parts).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"x")));
            let never = tokio_stream::pending();
            let stream = tokio_stream::StreamExt::chain(tokio_stream::iter(parts), never);
            let is_late = Arc::new(AtomicBool::new(false));
            let stream = Whole::from_stream(stream);
            let body = TimedBody::new(stream, timeouts, Arc::default(), Arc::clone(&is_late));
            let body = Whole::new(body);
            (axum::body::to_bytes(body, 1000).await.is_ok(), is_late.load(Ordering::Relaxed))
        };
        assert_eq!(read(timeouts(5, 60_000), 0).await, (false, true));
        assert_eq!(read(timeouts(60_000, 5), 3).await, (false, true));
        let (body, is_late) = (Whole::from("all"), Arc::new(AtomicBool::new(false)));
        let body = TimedBody::new(body, timeouts(60_000, 60_000), Arc::default(), Arc::clone(&is_late));
        let body = Whole::new(body);
        assert_eq!(axum::body::to_bytes(body, 1000).await.unwrap(), "all");
        assert!(!is_late.load(Ordering::Relaxed));
    }
}
