//! Requirements of every store, tested on each database.
//!
//! `AGENTAFLOW_TEST_POSTGRES` is the address of a PostgreSQL server whose user may create databases; each test creates
//! its own.

mod durable;
mod lists;
mod make;
mod money;
mod owner;
mod place;
mod records;
mod retention;

use place::Place;

/// Every test, once on each database.
macro_rules! checks {
    ($($module:ident::$check:ident,)*) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $check() {
                    super::$module::$check(&super::Place::sqlite()).await;
                }
            )*
        }

        mod postgres_store {
            $(
                #[tokio::test]
                #[ignore = "needs a PostgreSQL server; `cargo xtask test` starts one"]
                async fn $check() {
                    super::$module::$check(&super::Place::postgres().await).await;
                }
            )*
        }
    };
}

checks! {
    records::an_empty_store_has_nothing_in_it,
    records::every_record_comes_back_as_it_was_written,
    records::a_record_written_again_is_changed,
    records::deleted_ids_are_not_used_again,
    records::heartbeats_change_nothing_else,
    records::a_duplicate_name_fails_the_whole_transaction,
    records::a_transaction_is_all_or_nothing,
    records::the_state_of_an_unknown_job_is_refused,
    records::ended_jobs_are_not_loaded,
    records::credentials_that_expired_long_ago_are_not_loaded,
    records::an_idempotency_key_finds_its_job_until_deleted,
    records::strings_of_any_kind_come_back,
    lists::jobs_are_listed_newest_first_in_pages,
    lists::jobs_are_found_by_owner_state_queue_and_name,
    lists::searches_match_special_characters_literally,
    lists::events_are_listed_oldest_first_from_a_cursor,
    lists::the_ledger_is_listed_newest_first,
    lists::a_large_transaction_keeps_its_order,
    money::usage_is_summed_up_by_user_queue_node_day_and_job,
    money::sums_are_exact_beyond_64_bits,
    money::accounts_have_a_balance_and_monthly_spending,
    money::measured_jobs_are_found_by_end_and_owner,
    retention::ended_jobs_are_deleted_with_their_events_and_the_ledger_stays,
    retention::records_of_each_user_are_measured,
    owner::a_second_server_is_refused_with_a_message,
    owner::everything_is_there_after_opening_again,
    owner::a_closed_store_fails_and_does_not_hang,
    owner::readers_do_not_wait_for_the_writer,
}
