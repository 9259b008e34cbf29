//! File descriptors: the limit is raised to the maximum and shared among the listeners.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Descriptors kept for files, Redis, reloads, and connections that wait at a full listener.
const RESERVED: u64 = 128;

/// Raises the limit on open files to the hard limit.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum && setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        warn!(?current, "the limit on open files cannot be raised to {maximum:?}");
    }
}

/// The most connections of each listener: `wanted`, or an equal share of the descriptors if those
/// are too few, which is logged.
pub(crate) fn share(listeners: usize, wanted: usize) -> usize {
    let share = share_of(getrlimit(Resource::Nofile).current, listeners, wanted);
    if share < wanted {
        let needed = wanted.saturating_mul(listeners).saturating_add(RESERVED as usize);
        warn!(
            "too few file descriptors for max_connections = {wanted}, so each listener accepts {share}; raise \
             the limit on open files to {needed} (LimitNOFILE= in systemd, --ulimit nofile= in Docker, \
             ulimit -Hn in a shell), or lower max_connections"
        );
    }
    share
}

fn share_of(limit: Option<u64>, listeners: usize, wanted: usize) -> usize {
    let Some(limit) = limit else { return wanted };
    let for_connections = limit.saturating_sub(RESERVED.min(limit / 2));
    let share = usize::try_from(for_connections).unwrap_or(usize::MAX) / listeners.max(1);
    share.min(wanted).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_what_it_wants_or_an_equal_share() {
        assert_eq!(share_of(None, 3, 10_000), 10_000);
        assert_eq!(share_of(Some(30_128), 3, 10_000), 10_000);
        assert_eq!(share_of(Some(30_127), 3, 10_000), 9_999);
        assert_eq!(share_of(Some(1_024), 3, 10_000), 298);
        assert_eq!(share_of(Some(64), 3, 10_000), 10, "half of a small limit is reserved");
        assert_eq!(share_of(Some(0), 3, 10_000), 1);
    }
}
