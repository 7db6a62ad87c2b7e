//! Every operation, in both roles.

use std::time::Duration;

use gdr_rdma::{Deadline, Mtu};
use gdr_vm_tests::kernel::{self, Backing, KernelEnd};
use gdr_vm_tests::soft::{self, SoftEnd};
use gdr_vm_tests::{End, Outcome, Settings, Work};

#[test]
#[ignore = "runs in the VM"]
fn thin() {
    let device = soft::device(soft::V4).unwrap();
    let mut near = SoftEnd::new(&device, 1 << 20).unwrap();
    let rxe = kernel::Device::open("rxe0").unwrap();
    let mut far = KernelEnd::new(&rxe, kernel::V4, Backing::Anonymous, 1 << 20).unwrap();
    let settings = Settings::new(Mtu::B1024);
    near.connect(&far.peer(), &settings);
    far.connect(&near.peer(), &settings);
    near.fill(0, &[7; 5000]);
    near.post(
        1,
        Work::Write {
            local: 0,
            len: 5000,
            remote: 100,
            immediate: None,
        },
    );
    let done = near.wait(Deadline::after(Duration::from_secs(20))).unwrap();
    assert_eq!(done.outcome, Outcome::Success);
    assert_eq!(far.bytes(100, 5000), [7; 5000]);
    far.fill(0, &[9; 5000]);
    far.post(
        1,
        Work::Write {
            local: 0,
            len: 5000,
            remote: 100,
            immediate: None,
        },
    );
    let done = far.wait(Deadline::after(Duration::from_secs(20))).unwrap();
    assert_eq!(done.outcome, Outcome::Success);
    assert_eq!(near.bytes(100, 5000), [9; 5000]);
}
