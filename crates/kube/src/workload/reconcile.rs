//! One look at a workload from beginning to end.

use super::{Outlook, Reconciled};
use crate::slim;

/// What is to be done for a workload now.
pub fn reconcile(
    workload: &slim::Workload,
    pods: &[&slim::Pod],
    outlook: &Outlook,
    scheduler_name: &str,
    now: jiff::Timestamp,
) -> Reconciled {
    let _ = (workload, pods, outlook, scheduler_name, now);
    todo!()
}
