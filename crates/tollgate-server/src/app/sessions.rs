//! Sessions of the dashboard: they may read, and are kept in memory only.
//!
//! A one-time code opens a session. The code is valid once and for ten minutes, and a number of
//! wrong codes voids it. A session ends after twelve hours, when the server stops, and when an
//! admin token is configured.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::Timestamp;

use crate::secret::Secret;

/// How long a code is valid.
const CODE_LIFETIME: Duration = Duration::from_mins(10);

/// How long a session lasts.
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_hours(12);

/// The most open sessions. The oldest one ends for a new one.
const SESSIONS_MAX: usize = 16;

/// The wrong codes that void the right one.
const WRONG_CODES_MAX: u32 = 16;

/// The sessions and the code that opens the next one.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    code: Option<Code>,
    /// Oldest first.
    open: Vec<Session>,
}

#[derive(Debug)]
struct Code {
    secret: Secret,
    /// The session that the code opens.
    opens: Secret,
    ends_at: Timestamp,
    wrong: u32,
}

#[derive(Debug)]
struct Session {
    secret: Secret,
    ends_at: Timestamp,
}

impl Sessions {
    /// A new code. The code before it is void.
    ///
    /// # Errors
    /// If the operating system has no randomness.
    pub(super) fn issue_code(&self, now: Timestamp) -> Result<String, String> {
        let secret = Secret::random()?;
        let revealed = secret.reveal().to_owned();
        let ends_at = now.saturating_add(CODE_LIFETIME);
        self.state().code = Some(Code { secret, opens: Secret::random()?, ends_at, wrong: 0 });
        Ok(revealed)
    }

    /// Spends a code and opens its session. `None` if the code is wrong, spent or expired.
    pub(crate) fn open(&self, code: &[u8], now: Timestamp) -> Option<Secret> {
        let mut state = self.state();
        let expected = state.code.as_mut()?;
        if !expected.secret.is(code) || now >= expected.ends_at {
            expected.wrong += 1;
            if expected.wrong >= WRONG_CODES_MAX || now >= expected.ends_at {
                state.code = None;
            }
            return None;
        }
        let secret = state.code.take()?.opens;
        state.open.retain(|session| now < session.ends_at);
        if state.open.len() >= SESSIONS_MAX {
            state.open.remove(0);
        }
        state.open.push(Session { secret: secret.clone(), ends_at: now.saturating_add(SESSION_LIFETIME) });
        Some(secret)
    }

    /// Whether `shown` is an open session. It is compared with every one, so the time of the answer
    /// does not reveal which.
    pub(crate) fn is_open(&self, shown: &[u8], now: Timestamp) -> bool {
        let state = self.state();
        let open = state.open.iter().filter(|session| now < session.ends_at);
        open.fold(false, |found, session| found | session.secret.is(shown))
    }

    /// Ends every session and voids the code.
    pub(super) fn end_all(&self) {
        *self.state() = State::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::SECOND;

    const START: Timestamp = Timestamp::from_secs(1_800_000_000);

    #[test]
    fn a_code_opens_one_session_within_ten_minutes() {
        let sessions = Sessions::default();
        assert!(sessions.open(b"", START).is_none(), "no code was issued");
        let code = sessions.issue_code(START).unwrap();
        let last = START.saturating_add(CODE_LIFETIME - SECOND);
        assert!(sessions.open(b"wrong", last).is_none());
        let session = sessions.open(code.as_bytes(), last).unwrap();
        assert!(sessions.open(code.as_bytes(), last).is_none(), "the code is spent");
        let late = sessions.issue_code(START).unwrap();
        let end = START.saturating_add(CODE_LIFETIME);
        assert!(sessions.open(late.as_bytes(), end).is_none(), "the code has expired");
        assert!(sessions.open(late.as_bytes(), START).is_none(), "and stays so if the clock goes back");
        assert!(sessions.is_open(session.reveal().as_bytes(), end));
        assert!(!sessions.is_open(b"", end) && !sessions.is_open(code.as_bytes(), end));
    }

    #[test]
    fn a_session_ends_after_twelve_hours_or_with_all_others() {
        let sessions = Sessions::default();
        let open = || {
            let code = sessions.issue_code(START).unwrap();
            sessions.open(code.as_bytes(), START).unwrap()
        };
        let session = open();
        let is_open = |at| sessions.is_open(session.reveal().as_bytes(), at);
        let end = START.saturating_add(SESSION_LIFETIME);
        assert!(is_open(end.saturating_sub(SECOND)) && !is_open(end));
        sessions.end_all();
        assert!(!is_open(START));
    }

    #[test]
    fn codes_can_be_guessed_a_few_times_and_sessions_are_few() {
        let sessions = Sessions::default();
        let code = sessions.issue_code(START).unwrap();
        for _ in 0..WRONG_CODES_MAX {
            assert!(sessions.open(b"guess", START).is_none());
        }
        assert!(sessions.open(code.as_bytes(), START).is_none(), "too many guesses void the code");
        let open = |_| {
            let code = sessions.issue_code(START).unwrap();
            sessions.open(code.as_bytes(), START).unwrap()
        };
        let opened: Vec<Secret> = (0..=SESSIONS_MAX).map(open).collect();
        let is_open = |session: &Secret| sessions.is_open(session.reveal().as_bytes(), START);
        assert!(
            !is_open(&opened[0]) && opened.iter().skip(1).all(is_open),
            "the oldest ended for the newest"
        );
    }
}
