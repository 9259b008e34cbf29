//! Commands into requests to the limiter.

use tollgate::{AsRequest, Caller, InlineLimit, Limiter, Request};

use super::command::Check;
use super::throttle::{LimitArguments, Throttle};
use crate::backend::Backend;

/// A check, and the form of its reply.
#[derive(Debug)]
pub(super) enum CheckRequest<'a> {
    /// `CL.THROTTLE`, with the limit that its arguments resolve to.
    Throttle(Throttle<'a>, InlineLimit, Caller),
    /// `TOLL.CHECK`
    Check(Check<'a>),
}

impl CheckRequest<'_> {
    pub(super) const fn is_peek(&self) -> bool {
        match self {
            Self::Throttle(throttle, ..) => throttle.is_peek(),
            Self::Check(check) => check.peek,
        }
    }
}

impl AsRequest for &CheckRequest<'_> {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        match self {
            CheckRequest::Throttle(throttle, limit, caller) => f(throttle.request(limit).caller(*caller)),
            CheckRequest::Check(check) => (&check.request).with_request(f),
        }
    }
}

/// The last limit of a connection, which is nearly always the next one too.
#[derive(Debug, Default)]
pub(super) struct LastLimit(Option<(LimitArguments, InlineLimit)>);

impl LastLimit {
    /// Resolves the limit of a call.
    ///
    /// # Errors
    /// A sentence for the error reply.
    pub(super) fn resolve(
        &mut self,
        limiter: &Limiter<Backend>,
        arguments: LimitArguments,
    ) -> Result<InlineLimit, String> {
        match self.0 {
            Some((known, limit)) if known == arguments => Ok(limit),
            _ => {
                let limit = limiter.inline(arguments.limit()?).map_err(|error| error.to_string())?;
                self.0 = Some((arguments, limit));
                Ok(limit)
            }
        }
    }
}
