//! draft
#![warn(clippy::arithmetic_side_effects, clippy::cast_possible_truncation, clippy::as_conversions)]
#![cfg_attr(
    test,
    expect(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "a test that overflows fails, as it should")
)]
mod algorithm;
mod error;
mod limit;
mod meter;
mod notation;
mod time;
mod block_on;
mod key { pub(crate) const MAX_VALUE_BYTES: usize = 1024; }
pub use block_on::block_on;
pub use error::Error;
pub use limit::{Algorithm, Bucket, Limit, MAX_COUNT, MAX_SPAN};
pub use meter::{Meter, Outcome, Verdict};
pub use notation::parse_duration;
pub use time::{Clock, DAY, HOUR, MINUTE, ManualClock, SECOND, Sleep, SystemClock, Timestamp};
