//! The merged requests, in batches that all candidates share.

use std::borrow::Cow;

use tollgate::{AsRequest, CLIENT, MAX_VALUE_BYTES, Paths, Request, Timestamp};

use super::reader::{Batch, Span};
use super::traffic::{ClientId, NO_CLIENT};

/// The attribute that is a path.
const PATH: &str = "path";

/// A request to decide.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) time: Timestamp,
    pub(super) cost: u64,
    pub(super) client: ClientId,
}

/// Requests in the order of time.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) steps: Vec<Step>,
    text: String,
    /// For each step the name of its client and its attributes. Empty if no candidate reads them.
    spans: Vec<Option<Span>>,
    /// Spans of a step.
    stride: usize,
}

impl Steps {
    /// Room for steps with this many attributes, if any candidate reads them.
    pub(super) fn with_attributes(attributes: Option<usize>) -> Self {
        Self { stride: attributes.map_or(0, |count| count + 1), ..Self::default() }
    }

    /// Appends a request of a batch.
    pub(super) fn push(&mut self, step: Step, batch: &Batch, index: usize) {
        self.steps.push(step);
        let Some(attributes) = self.stride.checked_sub(1) else { return };
        let client = batch.requests.get(index).and_then(|request| request.client);
        let attributes = batch.attributes.get(index * attributes..(index + 1) * attributes);
        for span in std::iter::once(client).chain(attributes.unwrap_or_default().iter().copied()) {
            let span = span.map(|span| {
                let start = self.text.len();
                self.text.push_str(batch.text_of(span));
                (start, self.text.len())
            });
            let short = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            self.spans.push(span.map(|(start, end)| (short(start), short(end))));
        }
    }

    /// The value of a step's client (0) or of one of its attributes (from 1).
    fn value(&self, step: usize, attribute: usize) -> Option<&str> {
        let (start, end) = (*self.spans.get(step * self.stride + attribute)?)?;
        self.text.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}

/// A request of a client known by its number. The number identifies the client as well as its name
/// does, and takes less time.
pub(super) struct NumberedRequest(pub(super) Step);

impl AsRequest for NumberedRequest {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        debug_assert_ne!(self.0.client, NO_CLIENT, "a request without a key is not covered");
        u64::from(self.0.client).with_request(|request| f(request.cost(self.0.cost)))
    }
}

/// A request with the attributes that the rules of a configuration read.
pub(super) struct NamedRequest<'a> {
    pub(super) steps: &'a Steps,
    pub(super) index: usize,
    /// The names of the attributes, in the order of the steps' values.
    pub(super) attributes: &'a [String],
    /// How the rules see paths.
    pub(super) paths: Paths,
}

impl NamedRequest<'_> {
    /// The path, normalised and then shortened, as the server does.
    fn path(&self) -> Option<Cow<'_, str>> {
        let at = self.attributes.iter().position(|name| name == PATH)?;
        let mut path = self.paths.normalize(self.steps.value(self.index, at + 1)?);
        if path.len() > MAX_VALUE_BYTES {
            let end = path.floor_char_boundary(MAX_VALUE_BYTES);
            path.to_mut().truncate(end);
        }
        Some(path)
    }
}

impl AsRequest for NamedRequest<'_> {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        let path = self.path();
        let names = std::iter::once(CLIENT).chain(self.attributes.iter().map(String::as_str));
        let values = names.enumerate().filter_map(|(at, name)| match &path {
            Some(path) if name == PATH => Some((name, &**path)),
            _ => Some((name, self.steps.value(self.index, at)?)),
        });
        let attributes: smallvec::SmallVec<[(&str, &str); 8]> = values.collect();
        let cost = self.steps.steps.get(self.index).map_or(1, |step| step.cost);
        f(Request::new(&attributes).cost(cost))
    }
}
