//! A forked child beside an installed libibverbs. In a test binary of its own, as a fork concerns the
//! whole process.

#![allow(clippy::unwrap_used)]

#[path = "library/built.rs"]
mod built;
#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "forwarding/copy.rs"]
mod copy;
#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "forwarding/objects.rs"]
mod objects;

use std::ffi::c_int;
use std::panic::{self, AssertUnwindSafe};

use crate::copy::{Copy, PRELOAD, fake};
use crate::objects::Objects;

/// Runs `work` in a forked child; returns the child's status as `waitpid` has it.
fn in_child(work: impl FnOnce()) -> c_int {
    // SAFETY: the child calls the libraries, which is what is tested, and the C library's allocator,
    // which may be used after a fork. No other thread of this process is in the libraries.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(60) };
            let outcome = panic::catch_unwind(AssertUnwindSafe(work));
            // SAFETY: ends the child without the parent's destructors.
            unsafe { libc::_exit(c_int::from(outcome.is_err())) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: a child of this process.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        }
    }
}

#[test]
fn handles_of_the_parent_are_not_passed_on_to_the_installed_library() {
    let fake = fake();
    let copy = Copy::new(PRELOAD, &[("GDR_LIBIBVERBS", fake.path())]);
    let verbs = copy.verbs;
    let (mut near, mut far) = (vec![0_u64; 8], vec![0_u64; 8]);
    let own = Objects::new(verbs, copy.open(0), &mut near);
    let installed = Objects::new(verbs, copy.open(1), &mut far);
    let of_installed = fake.live("mlx5_0");
    let status = in_child(|| {
        own.assert_unknown(verbs);
        // The installed library reports handles that it did not return.
        assert_eq!(fake.report().violations, [""; 0]);
        // Its own still reach it.
        // SAFETY: the context is open.
        unsafe { verbs.query_gid(installed.context, 1, 0) }.unwrap();
        assert_eq!(fake.live("mlx5_0"), of_installed);
        // Objects of the child are apart from those of the parent.
        let mut words = vec![0; 8];
        let of_child = Objects::new(verbs, copy.open(0), &mut words);
        assert_ne!(of_child.domain, own.domain);
        of_child.close(verbs);
        own.assert_unknown(verbs);
        installed.close(verbs);
        fake.assert_clean();
    });
    assert_eq!(status, 0);
    own.close(verbs);
    installed.close(verbs);
    fake.assert_clean();
}
