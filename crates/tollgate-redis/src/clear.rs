//! Removes the state of a rule: every budget of every client.

use redis::Value;
use tollgate::StoreError;

use crate::RedisStore;
use crate::connection::error_text;
use crate::denials::Denials;
use crate::key::{hold_names, parse_name};

/// How far [`RedisStore::clear_with`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClearProgress {
    /// Keys of the store that were looked at.
    pub seen: u64,
    /// Budgets that were removed.
    pub removed: u64,
}

impl RedisStore {
    /// Removes the state of a rule, as [`Store::clear`](tollgate::Store::clear) does. It looks at
    /// every key of the store and leaves Redis at least half of the time to others, so with many
    /// keys it takes long. `each` is called after every page. A future that is dropped leaves the
    /// rest of the state as it is.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if Redis cannot be asked. Some of the state may be gone.
    pub async fn clear_with(
        &self,
        rule: &str,
        mut each: impl FnMut(ClearProgress) + Send,
    ) -> Result<u64, StoreError> {
        let (link, prefix) = self.link_and_prefix();
        let is_of_rule = |name: &str| parse_name(prefix, name).is_some_and(|(other, _)| other == rule);
        let unlink = |name: &str| redis::cmd("UNLINK").arg(name).arg(&hold_names(name)).take();
        let mut progress = ClearProgress::default();
        let _invalidation = InvalidateAll(self.denials());
        let removed =
            link.admin_connection().await?.for_each_key(prefix, is_of_rule, unlink, |seen, page| {
                let removed = page.iter().filter(|answer| matches!(answer, Value::Int(1..))).count();
                progress.seen = progress.seen.saturating_add(u64::try_from(seen).unwrap_or(0));
                progress.removed = progress.removed.saturating_add(u64::try_from(removed).unwrap_or(0));
                each(progress);
            });
        removed.await.map_err(|error| StoreError::Unavailable { reason: error_text(&error) })?;
        Ok(progress.removed)
    }
}

/// Forgets the denials that are remembered when dropped: also after a failure, and if the call is
/// given up, some keys may be gone.
struct InvalidateAll<'a>(Option<&'a Denials>);

impl Drop for InvalidateAll<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|denials| denials.invalidate_all());
    }
}
