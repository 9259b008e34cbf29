//! Callers: the parties that a limiter's queue and its bound on holds are shared among.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::num::NonZeroU32;
use std::sync::LazyLock;

/// Who sends a request, as far as sharing the limiter goes: callers take turns at a store, and each
/// has a share of the [holds](crate::HoldId). A caller is no attribute, and no rule sees it.
///
/// A caller is whoever cannot easily become somebody else: the peer's address, or the client that a
/// trusted proxy identified. A client's name is a bad caller if clients choose their own names.
///
/// ```
/// use std::net::Ipv4Addr;
/// use tollgate::Caller;
///
/// let peer = Caller::new(Ipv4Addr::LOCALHOST);
/// assert_eq!(peer, Caller::new(Ipv4Addr::LOCALHOST));
/// assert_ne!(peer, peer.with_share(8), "a proxy asks for many, so it has a larger share");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    id: u64,
    share: NonZeroU32,
}

impl Caller {
    /// The caller with this identity. Identities are hashed under a secret of the process, so that
    /// nobody can choose one that collides with another's.
    #[must_use]
    pub fn new(identity: impl Hash) -> Self {
        static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self { id: SECRET.hash_one(identity), share: NonZeroU32::MIN }
    }

    /// Sets how many callers this one counts as: 1 by default, and at least 1.
    #[must_use]
    pub const fn with_share(mut self, share: u32) -> Self {
        self.share = match NonZeroU32::new(share) {
            Some(share) => share,
            None => NonZeroU32::MIN,
        };
        self
    }

    /// The digest of its identity.
    pub(crate) const fn id(self) -> u64 {
        self.id
    }

    /// How many callers it counts as.
    pub(crate) const fn share(self) -> u32 {
        self.share.get()
    }
}
