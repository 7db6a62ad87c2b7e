//! A forked child with an installed libibverbs. In a test binary of its own, because a fork affects the whole process.

#![allow(clippy::unwrap_used)]

#[path = "library/built.rs"]
mod built;
#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "forwarding/copy.rs"]
mod copy;
#[allow(dead_code, reason = "the other test binary uses the rest")]
#[path = "forwarding/objects.rs"]
mod objects;

use forked::in_child;

use crate::copy::{Copy, PRELOAD, fake};
use crate::objects::Objects;

#[test]
fn handles_of_the_parent_are_not_passed_on_to_the_installed_library() {
    let fake = fake();
    let copy = Copy::new(PRELOAD, &[("GDR_LIBIBVERBS", fake.path())]);
    let verbs = copy.verbs;
    let (mut near, mut far) = (vec![0_u64; 8], vec![0_u64; 8]);
    let own = Objects::new(verbs, copy.open(0), &mut near);
    let installed = Objects::new(verbs, copy.open(1), &mut far);
    let of_installed = fake.report().live;
    in_child(|| {
        own.assert_unknown(verbs);
        // The installed library records handles that it did not return.
        assert_eq!(fake.report().violations, [""; 0]);
        // Its own objects still reach it.
        // SAFETY: the context is open.
        unsafe { verbs.query_gid(installed.context, 1, 0) }.unwrap();
        assert_eq!(fake.report().live, of_installed);
        // Objects of the child differ from the parent's.
        let mut words = vec![0; 8];
        let of_child = Objects::new(verbs, copy.open(0), &mut words);
        assert_ne!(of_child.domain, own.domain);
        of_child.close(verbs);
        own.assert_unknown(verbs);
        // The library itself refuses objects of the parent.
        // SAFETY: the library checks handles.
        let refused = unsafe { verbs.ibv_dereg_mr(installed.region) };
        assert!(refused.is_err());
        assert_eq!(fake.calls(&["ibv_query_gid_ex", "ibv_dereg_mr"]).len(), 2);
        Ok(())
    });
    own.close(verbs);
    installed.close(verbs);
    fake.assert_clean();
}
