//! The traffic of the logs, whatever the candidates decide: clients, counts and times.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::Timestamp;

use super::timeline::Timeline;

/// The number of a client, in the order of appearance.
pub(super) type ClientId = u32;

/// Stands for a request that has no key.
pub(super) const NO_CLIENT: ClientId = ClientId::MAX;

/// The clients, by name and by number.
#[derive(Debug, Default)]
pub(super) struct Clients {
    ids: HashMap<Arc<str>, ClientId>,
    names: Vec<Arc<str>>,
}

impl Clients {
    /// The number of a client, a new one if the client is new.
    fn id(&mut self, name: &str) -> ClientId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = ClientId::try_from(self.names.len()).unwrap_or(NO_CLIENT);
        let name: Arc<str> = name.into();
        self.names.push(Arc::clone(&name));
        self.ids.insert(name, id);
        id
    }

    pub(super) fn name(&self, id: ClientId) -> &str {
        self.names.get(index(id)).map_or("", |name| name)
    }
}

/// A number of a client as an index.
pub(super) fn index(id: ClientId) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

/// What is counted of all requests.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) clients: Clients,
    /// The requests of each client.
    pub(super) requests_by_client: Vec<u64>,
    pub(super) requests: u64,
    pub(super) without_key: u64,
    pub(super) units: u64,
    pub(super) timeline: Timeline,
    /// The times of the first and the last request.
    pub(super) span: Option<(Timestamp, Timestamp)>,
}

impl Traffic {
    pub(super) fn new() -> Self {
        Self {
            clients: Clients::default(),
            requests_by_client: Vec::new(),
            requests: 0,
            without_key: 0,
            units: 0,
            timeline: Timeline::new(),
            span: None,
        }
    }

    /// Counts a request, and returns the number of its client.
    pub(super) fn count(&mut self, time: Timestamp, cost: u64, client: Option<&str>) -> ClientId {
        self.requests += 1;
        self.units = self.units.saturating_add(cost);
        self.timeline.add(time, 1);
        self.span = Some(self.span.map_or((time, time), |(first, _)| (first, time)));
        let Some(name) = client else {
            self.without_key += 1;
            return NO_CLIENT;
        };
        let id = self.clients.id(name);
        if index(id) == self.requests_by_client.len() {
            self.requests_by_client.push(0);
        }
        if let Some(requests) = self.requests_by_client.get_mut(index(id)) {
            *requests += 1;
        }
        id
    }
}
