use std::net::Ipv4Addr;

use fake_ibverbs::{DeviceSpec, Fake, Fault};
use gdr_verbs_sys::{Errno, LoadError, NoDevice, OptionalVerb, VerbError, Verbs};

use crate::connection::{FIRST, open};

#[test]
fn a_missing_library_a_missing_function_and_no_device_are_different_errors() {
    // SAFETY: the library does not exist.
    let missing = unsafe { Verbs::open("/nonexistent/libfake_ibverbs.so") }.unwrap_err();
    assert!(matches!(missing, LoadError::Library { .. }), "{missing}");

    let folder = Fake::folder(&["ibv_modify_qp"]);
    let file = folder.path().join("libfake_ibverbs.so");
    // SAFETY: the fake behaves like libibverbs.
    let old = unsafe { Verbs::open(&file) }.unwrap_err();
    assert!(matches!(&old, LoadError::Symbol { symbol, .. } if *symbol == "ibv_modify_qp"));

    let fake = Fake::load();
    assert!(fake.verbs().devices().unwrap().is_empty());
}

#[test]
fn a_kernel_without_ib_uverbs_is_another_error_than_no_device() {
    let fake = Fake::load();
    fake.add(DeviceSpec::default());
    let refuse = |errno| {
        let verb = "ibv_get_device_list".to_owned();
        fake.fault(&DeviceSpec::default().name, Fault::Refuse(verb, errno, 1));
    };
    refuse(libc::ENOSYS);
    let error = fake.verbs().devices().unwrap_err();
    assert_eq!(error, LoadError::NoDevice(NoDevice::NoUverbs));
    refuse(libc::EACCES);
    let error = fake.verbs().devices().unwrap_err();
    assert_eq!(error, LoadError::NoDevice(NoDevice::List(Errno::EACCES)));
}

#[test]
fn devices_can_be_added_and_removed() {
    let fake = Fake::load();
    let names = || fake.verbs().devices().unwrap().len();
    assert_eq!(names(), 0);
    fake.add(DeviceSpec::roce("mlx5_0", FIRST));
    fake.add(DeviceSpec::infiniband("mlx5_1", 3));
    assert_eq!(names(), 2);
    fake.fault("mlx5_0", Fault::Remove);
    assert_eq!(names(), 1);
}

#[test]
fn a_library_without_dma_buf_is_an_error_with_the_function() {
    let fake = Fake::without(&["ibv_reg_dmabuf_mr"]);
    fake.add(DeviceSpec::roce("mlx5_0", Ipv4Addr::new(10, 0, 0, 1)));
    let verbs = fake.verbs();
    assert!(!verbs.has(OptionalVerb::RegDmabufMr));
    assert!(verbs.has(OptionalVerb::RegMrIova2));
    let context = open(verbs, "mlx5_0");
    // SAFETY: the context is open, and the domain alive.
    unsafe {
        let domain = verbs.ibv_alloc_pd(context).unwrap().as_ptr();
        let error = verbs.ibv_reg_dmabuf_mr(domain, 0, 0, 0, -1, 0).unwrap_err();
        let verb = "ibv_reg_dmabuf_mr";
        assert_eq!(error, VerbError::NotInLibrary { verb });
        verbs.ibv_dealloc_pd(domain).unwrap();
        verbs.ibv_close_device(context).unwrap();
    }
    fake.assert_clean();
}

#[test]
fn each_copy_of_the_library_has_separate_devices() {
    let (one, other) = (Fake::load(), Fake::load());
    one.add(DeviceSpec::roce("mlx5_0", FIRST));
    assert_eq!(one.verbs().devices().unwrap().len(), 1);
    assert!(other.verbs().devices().unwrap().is_empty());
}

#[test]
fn loading_the_library_protects_memory_from_fork() {
    for without in [&[][..], &["ibv_is_fork_initialized"]] {
        let fake = Fake::without(without);
        let calls = fake.calls(&["ibv_fork_init"]);
        assert_eq!(calls.len(), 1, "without {without:?}: {calls:?}");
    }
}
