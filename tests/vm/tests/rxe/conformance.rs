//! The suite of all providers, with the soft provider and rxe in each role.

use crate::fixture::{Host, suite};

macro_rules! roles {
    ($($module:ident: $near:ident, $far:ident;)*) => {$(
        mod $module {
            use super::*;

            fn run(test: fn(&conformance::Bench<'_>)) {
                suite(Host::$near, Host::$far, test);
            }

            conformance::conformance!(#[ignore = "runs in the VM"] run);
        }
    )*};
}

roles! {
    soft_to_rxe: Soft, Rxe;
    rxe_to_soft: Rxe, Soft;
    rxe_to_rxe: Rxe, Rxe;
}
