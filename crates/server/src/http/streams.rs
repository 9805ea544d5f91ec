//! Open streams, limited per account so that no account takes all connections.

use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;

use agentaflow_api::ids::UserId;

use crate::api_error::ApiError;

/// Maximum number of open streams per account.
const MOST: u32 = 200;

/// Number of open streams of each account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<Mutex<FxHashMap<UserId, u32>>>);

/// A counted stream; the count ends with the drop.
#[derive(Debug)]
pub(crate) struct Counted {
    streams: Streams,
    user: UserId,
}

impl Streams {
    /// Counts one more stream of an account.
    pub(crate) fn open(&self, user: UserId) -> Result<Counted, ApiError> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(user).or_default();
        if *count >= MOST {
            let detail = format!("this account holds {MOST} streams open already; close some");
            return Err(ApiError::too_many(detail, 10));
        }
        *count += 1;
        Ok(Counted { streams: self.clone(), user })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.streams.0.lock().unwrap_or_else(PoisonError::into_inner);
        let left = counts.get(&self.user).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            counts.remove(&self.user);
        } else {
            counts.insert(self.user, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_holds_so_many_streams_and_no_more_until_it_closes_one() {
        let streams = Streams::default();
        let mut held: Vec<_> = (0..MOST).map(|_| streams.open(UserId(1)).unwrap()).collect();
        assert_eq!(streams.open(UserId(1)).unwrap_err().status, 429);
        assert!(streams.open(UserId(2)).is_ok());
        held.pop();
        held.push(streams.open(UserId(1)).unwrap());
        drop(held);
        assert!(streams.0.lock().unwrap().is_empty());
    }
}
