//! Users, passwords and keys.

use agentaflow_api::account::{ApiKeyCreate, Register, UserCreate, UserUpdate};
use agentaflow_api::units::{Dollars, Secret};

use super::{Checked, at_most, few, lines, name, plain, refuse, refuse_both};
use crate::auth::PASSWORD_LENGTH;
use crate::http::limits;

/// Validates the creation of a user.
pub fn check_user(user: &UserCreate) -> Checked {
    username(&user.username)?;
    email(user.email.as_ref())?;
    user.password.as_ref().map_or(Ok(()), |new| password("password", new))?;
    grants(&user.grants)?;
    queue(user.default_queue.as_ref())?;
    money("spending_limit", user.spending_limit, false)
}

/// Validates a change of a user.
pub fn check_user_update(update: &UserUpdate) -> Checked {
    email(update.email.as_ref())?;
    update.password.as_ref().map_or(Ok(()), |new| password("password", new))?;
    update.grants.as_ref().map_or(Ok(()), |list| grants(list))?;
    queue(update.default_queue.as_ref())?;
    money("spending_limit", update.spending_limit, true)
}

pub fn check_register(register: &Register) -> Checked {
    register.username.as_ref().map_or(Ok(()), |name| username(name))?;
    email(register.email.as_ref())?;
    password("password", &register.password)
}

/// Validates the creation of a key.
pub fn check_key(key: &ApiKeyCreate) -> Checked {
    plain("name", &key.name, 100)?;
    if key.name.trim().is_empty() {
        return refuse("name", "is missing: describe the use of the key");
    }
    at_most("expires_in_days", key.expires_in_days, limits::DAYS)?;
    if key.expires_in_days == Some(0) {
        return refuse("expires_in_days", "must be 1 or more; omit it for a key without an end");
    }
    if key.expires_in_seconds.is_some() && key.expires_in_days.is_some() {
        return refuse_both("expires_in_seconds", "cannot be combined with", "expires_in_days");
    }
    let most = u64::from(limits::DAYS) * 24 * 3600;
    if key.expires_in_seconds.is_some_and(|seconds| seconds == 0 || seconds > most) {
        let text = format!("must be 1 to {most}; omit it for a key without an end");
        return refuse("expires_in_seconds", text);
    }
    if key.uses == Some(0) {
        return refuse("uses", "must be 1 or more; omit it for no limit");
    }
    Ok(())
}

pub fn password(field: &str, password: &Secret) -> Checked {
    lines(field, password.expose(), 4 * PASSWORD_LENGTH.end())?;
    let (least, most) = (PASSWORD_LENGTH.start(), PASSWORD_LENGTH.end());
    if PASSWORD_LENGTH.contains(&password.expose().chars().count()) {
        return Ok(());
    }
    refuse(field, format!("must have {least} to {most} characters"))
}

fn username(text: &str) -> Checked {
    name("username", text, 64)
}

fn email(text: Option<&String>) -> Checked {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(()) };
    plain("email", text, 254)?;
    let fits = text.split_once('@').is_some_and(|(user, host)| {
        !user.is_empty() && !host.is_empty() && !host.contains('@') && !text.contains(' ')
    });
    if fits { Ok(()) } else { refuse("email", "must look like `name@example.com`") }
}

fn grants(grants: &[String]) -> Checked {
    few("grants", grants.len(), limits::MEMBERS)?;
    match grants.iter().find(|grant| *grant != "process") {
        Some(_) => refuse(
            "grants",
            "must contain no grant but `process`: permission to run jobs as plain processes",
        ),
        None => Ok(()),
    }
}

fn queue(queue: Option<&String>) -> Checked {
    queue.map_or(Ok(()), |queue| name("default_queue", queue, limits::NAME))
}

fn money(field: &str, amount: Option<Dollars>, negative: bool) -> Checked {
    let fits = |amount: Dollars| negative || amount.0 >= 0;
    if amount.is_none_or(fits) {
        return Ok(());
    }
    refuse(field, "must be 0 or more, in dollars")
}
