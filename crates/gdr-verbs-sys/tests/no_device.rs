//! The library named by the environment, in a separate process.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::env;
use std::fs;

use fake_ibverbs::{DeviceSpec, Fake, Fault};
use gdr_verbs_sys::{LoadError, NoDevice, Verbs};

#[test]
fn the_library_of_the_environment_is_loaded_and_a_list_that_becomes_empty_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("devices.json");
    fs::write(
        &list,
        r#"[{"name": "rxe0"}, {"name": "siw0", "node_type": 4}]"#,
    )
    .unwrap();
    // SAFETY: this process has one test, whose other thread waits for it.
    unsafe {
        env::set_var("GDR_LIBIBVERBS", Fake::library());
        env::set_var("FAKE_IBVERBS", &list);
    }
    let verbs = Verbs::load().unwrap();
    assert_eq!(verbs.file(), Fake::library());
    assert_eq!(verbs.devices().unwrap().len(), 2);

    let fake = Fake::of_process();
    for name in ["rxe0", "siw0"] {
        fake.fault(name, Fault::Remove);
    }
    let error = Verbs::load().unwrap_err();
    assert_eq!(error, LoadError::NoDevice(NoDevice::Empty));
    assert!(error.to_string().contains("rdma link add"), "{error}");

    fake.add(DeviceSpec::default());
    assert_eq!(Verbs::load().unwrap().devices().unwrap().len(), 1);
}
