//! The ids of reservations and slots.
//!
//! An id encodes the hold in the store and the attributes it was made for, so any server that
//! shares the store can settle, renew or release it, through any protocol, and none keeps state. A
//! forged id names no hold. An id also says what it names: the verbs of slots refuse a reservation,
//! and those of reservations a slot.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use tollgate::{
    Algorithm, AsRequest, CLIENT, Caller, Error, HOUR, HoldId, InlineLimit, Limit, Request, RequestBuf,
};

use crate::app::App;
use crate::inline::THROTTLE;
use crate::value::attribute_value;

/// The longest reservation, and the longest that a slot is held without a renewal.
pub(crate) const TTL_MAX: Duration = HOUR;

/// What an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeldKind {
    Reservation,
    Slot,
}

impl HeldKind {
    /// The byte in the id.
    const fn byte(self) -> u8 {
        match self {
            Self::Reservation => b'r',
            Self::Slot => b's',
        }
    }
}

/// Why a text is not the id that a verb takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdError {
    /// It is no id.
    Invalid,
    /// It names something else.
    Other(HeldKind),
}

/// The id of a reservation or a slot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeldId {
    kind: HeldKind,
    pub(crate) hold: HoldId,
    pub(crate) attributes: BTreeMap<String, String>,
}

/// A sentence that says which verbs take the id.
impl std::fmt::Display for IdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Invalid => Error::NotReserved.fmt(f),
            Self::Other(HeldKind::Slot) => {
                f.write_str("the id names a slot, not a reservation; renew or release it as a slot")
            }
            Self::Other(HeldKind::Reservation) => f.write_str(
                "the id names a reservation, not a slot; settle, renew or cancel it as a reservation",
            ),
        }
    }
}

impl std::fmt::Display for HeldId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = self.hold.0.to_be_bytes().to_vec();
        bytes.push(self.kind.byte());
        for text in self.attributes.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl HeldId {
    /// The id of a hold for a request with these attributes. A slot that no rule covers, or that
    /// the store did not see, is none.
    pub(crate) fn new(
        app: &App,
        kind: HeldKind,
        hold: Option<HoldId>,
        mut attributes: BTreeMap<String, String>,
    ) -> Self {
        // Only the attributes that rules use have to come back.
        app.limiter
            .with_rules(|rules| attributes.retain(|name, _| rules.attributes().binary_search(name).is_ok()));
        Self { kind, hold: hold.unwrap_or(HoldId::NO_SLOT), attributes }
    }

    /// The id of a slot of a key that came with its number of slots.
    pub(crate) fn inline(hold: Option<HoldId>, key: &str, slots: u64) -> Self {
        let attributes = [(CLIENT.to_owned(), key.to_owned()), (SLOTS.to_owned(), slots.to_string())];
        let hold = hold.unwrap_or(HoldId::NO_SLOT);
        Self { kind: HeldKind::Slot, hold, attributes: attributes.into() }
    }

    /// Holds it for `ttl` from now.
    ///
    /// # Errors
    /// As [`Limiter::renew`](tollgate::Limiter::renew).
    pub(crate) async fn renew(&self, app: &App, caller: Caller, ttl: Duration) -> Result<(), Error> {
        let slots = self.inline_slots(app)?;
        app.timed(app.limiter.renew(self.hold, self.request(slots.as_ref(), caller), ttl)).await
    }

    /// Releases a slot.
    ///
    /// # Errors
    /// As [`Limiter::release`](tollgate::Limiter::release).
    pub(crate) async fn release(&self, app: &App, caller: Caller) -> Result<(), Error> {
        let slots = self.inline_slots(app)?;
        app.timed(app.limiter.release(self.hold, self.request(slots.as_ref(), caller))).await
    }

    fn request<'a>(&'a self, slots: Option<&'a InlineLimit>, caller: Caller) -> HeldRequest<'a> {
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(name, value)| (name, attribute_value(name, value.as_bytes())));
        HeldRequest { request: attributes.collect::<RequestBuf<'_>>().caller(caller), slots }
    }

    /// The limit that came with the slot, if one did.
    fn inline_slots(&self, app: &App) -> Result<Option<InlineLimit>, Error> {
        let Some(slots) = self.attributes.get(SLOTS) else { return Ok(None) };
        let limit = slots.parse().map_err(|_| Error::NotReserved)?;
        app.limiter.inline(Limit::new(Algorithm::Concurrent { limit })?).map(Some)
    }

    /// Parses the id of a reservation or of a slot.
    ///
    /// # Errors
    /// If it is no id, or names the other kind.
    pub(crate) fn parse(kind: HeldKind, text: &str) -> Result<Self, IdError> {
        let id = Self::parse_any(text).ok_or(IdError::Invalid)?;
        if id.kind == kind { Ok(id) } else { Err(IdError::Other(id.kind)) }
    }

    fn parse_any(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (hold, rest) = bytes.split_first_chunk()?;
        let (kind, mut rest) = rest.split_first()?;
        let kinds = [HeldKind::Reservation, HeldKind::Slot];
        let kind = kinds.into_iter().find(|known| known.byte() == *kind)?;
        let mut attributes = BTreeMap::new();
        while !rest.is_empty() {
            let mut text = || {
                let (length, behind) = rest.split_first_chunk()?;
                let (text, behind) =
                    behind.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
                rest = behind;
                String::from_utf8(text.to_vec()).ok()
            };
            attributes.insert(text()?, text()?);
        }
        Some(Self { kind, hold: HoldId(u128::from_be_bytes(*hold)), attributes })
    }
}

/// The attribute with the number of slots of an inline limit. No rule can name it.
const SLOTS: &str = "";

/// The request that made a hold.
struct HeldRequest<'a> {
    request: RequestBuf<'a>,
    slots: Option<&'a InlineLimit>,
}

impl AsRequest for HeldRequest<'_> {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        (&self.request).with_request(|request| match self.slots {
            Some(slots) => f(request.under(THROTTLE, slots)),
            None => f(request),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_an_id_round_trips_and_other_texts_are_rejected() {
        let attributes = BTreeMap::from([("client".into(), "zoë/1".into()), ("plan".into(), "gold".into())]);
        let id = HeldId { kind: HeldKind::Slot, hold: HoldId(7 << 90), attributes };
        let text = id.to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
        assert_eq!(HeldId::parse(HeldKind::Slot, &text), Ok(id));
        let other = Err(IdError::Other(HeldKind::Slot));
        assert_eq!(HeldId::parse(HeldKind::Reservation, &text), other);
        for length in 0..text.len() {
            // Truncated at a boundary it is another id; anywhere else it is invalid. Neither may
            // panic.
            let _ = HeldId::parse_any(&text[..length]);
        }
        assert_eq!(
            [HeldId::parse_any(""), HeldId::parse_any("AAAA"), HeldId::parse_any("not base64!")],
            [None, None, None]
        );
    }
}
