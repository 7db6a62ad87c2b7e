//! Creation and destruction of objects in any order: which calls succeed, and the errno of failing calls.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use gdr_verbs_sys::*;
use proptest::prelude::*;

use crate::side::*;

/// `struct ibv_srq_init_attr`.
#[repr(C)]
struct SrqInit {
    context: *mut c_void,
    attr: ibv_srq_attr,
}

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Domain,
    Region,
    Channel,
    Queue,
    Pair,
    SharedQueue,
    AddressHandle,
}

const KINDS: [Kind; 7] = [
    Kind::Domain,
    Kind::Region,
    Kind::Channel,
    Kind::Queue,
    Kind::Pair,
    Kind::SharedQueue,
    Kind::AddressHandle,
];

/// A call. Each number selects a handle: an object, a destroyed object, or an object of another kind.
#[derive(Clone, Copy, Debug)]
enum Call {
    Create(Kind, [usize; 3]),
    Destroy(Kind, usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let kind = || prop::sample::select(KINDS.to_vec());
    let call = prop_oneof![
        3 => (kind(), any::<[usize; 3]>()).prop_map(|(kind, on)| Call::Create(kind, on)),
        2 => (kind(), any::<usize>()).prop_map(|(kind, of)| Call::Destroy(kind, of)),
    ];
    prop::collection::vec(call, 1..120)
}

/// The existing objects by address, with the objects that each one uses.
#[derive(Default)]
struct Model(BTreeMap<usize, (Kind, Vec<usize>)>);

impl Model {
    fn is(&self, address: usize, kind: Kind) -> bool {
        self.0.get(&address).is_some_and(|(own, _)| *own == kind)
    }

    /// Returns the expected result of a creation with these handles.
    fn create(&self, uses: &[(usize, Kind)]) -> Result<(), Errno> {
        match uses.iter().all(|(address, kind)| self.is(*address, *kind)) {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }

    fn destroy(&self, address: usize, kind: Kind) -> Result<(), Errno> {
        if !self.is(address, kind) {
            return Err(Errno::EINVAL);
        }
        let is_used = self.0.values().any(|(_, uses)| uses.contains(&address));
        if is_used { Err(Errno::EBUSY) } else { Ok(()) }
    }
}

fn at<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Returns the address of a created object, or errno.
fn created<T>(object: *mut T) -> Result<usize, Errno> {
    if object.is_null() {
        let error = std::io::Error::last_os_error();
        return Err(Errno(error.raw_os_error().unwrap()));
    }
    Ok(object.expose_provenance())
}

fn destroyed(status: c_int) -> Result<(), Errno> {
    match status {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

fn errno<T>(result: Result<T, VerbError>) -> Result<T, Errno> {
    result.map_err(|error| error.errno())
}

/// Returns the handles that a creation uses, in the order of [`create`].
fn uses(kind: Kind, on: [usize; 3]) -> Vec<(usize, Kind)> {
    let [first, second, third] = on;
    match kind {
        Kind::Domain | Kind::Channel => Vec::new(),
        Kind::Region | Kind::SharedQueue | Kind::AddressHandle => vec![(first, Kind::Domain)],
        Kind::Queue => vec![(first, Kind::Channel)],
        Kind::Pair => vec![
            (first, Kind::Domain),
            (second, Kind::Queue),
            (third, Kind::Queue),
        ],
    }
}

fn create(side: &Side, kind: Kind, on: [usize; 3], words: &mut [u64]) -> Result<usize, Errno> {
    let verbs = library();
    let [first, second, third] = on;
    // SAFETY: handles, which the library checks; the words live as long as the test.
    unsafe {
        match kind {
            Kind::Domain => {
                let domain = verbs.ibv_alloc_pd(side.context);
                errno(domain).map(|domain| domain.as_ptr().expose_provenance())
            }
            Kind::Region => {
                let (address, len) = (words.as_mut_ptr().cast(), size_of_val(words));
                let region = verbs.reg_mr(at(first), address, len, all_access());
                errno(region).map(|region| region.as_ptr().expose_provenance())
            }
            Kind::Channel => {
                let channel = verbs.ibv_create_comp_channel(side.context);
                errno(channel).map(|channel| channel.as_ptr().expose_provenance())
            }
            Kind::Queue => {
                let own = std::ptr::null_mut();
                let queue = verbs.ibv_create_cq(side.context, 4, own, at(first), 0);
                errno(queue).map(|queue| queue.as_ptr().expose_provenance())
            }
            Kind::Pair => {
                let mut init = ibv_qp_init_attr {
                    send_cq: at(second),
                    recv_cq: at(third),
                    qp_type: ibv_qp_type::IBV_QPT_RC,
                    ..Default::default()
                };
                let pair = verbs.ibv_create_qp(at(first), &mut init);
                errno(pair).map(|pair| pair.as_ptr().expose_provenance())
            }
            Kind::SharedQueue => {
                type Create = unsafe extern "C" fn(*mut ibv_pd, *mut SrqInit) -> *mut c_void;
                let mut init = SrqInit {
                    context: std::ptr::null_mut(),
                    attr: ibv_srq_attr {
                        max_wr: 4,
                        max_sge: 1,
                        srq_limit: 0,
                    },
                };
                created(typed_function::<Create>(c"ibv_create_srq")(
                    at(first),
                    &mut init,
                ))
            }
            Kind::AddressHandle => {
                type Create = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut c_void;
                let mut path = side.path();
                created(typed_function::<Create>(c"ibv_create_ah")(
                    at(first),
                    &mut path,
                ))
            }
        }
    }
}

fn destroy(kind: Kind, address: usize) -> Result<(), Errno> {
    type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
    let name = match kind {
        Kind::Domain => c"ibv_dealloc_pd",
        Kind::Region => c"ibv_dereg_mr",
        Kind::Channel => c"ibv_destroy_comp_channel",
        Kind::Queue => c"ibv_destroy_cq",
        Kind::Pair => c"ibv_destroy_qp",
        Kind::SharedQueue => c"ibv_destroy_srq",
        Kind::AddressHandle => c"ibv_destroy_ah",
    };
    // SAFETY: a handle, which the library checks.
    destroyed(unsafe { typed_function::<Destroy>(name)(at(address)) })
}

#[test]
fn no_verb_takes_a_pointer_that_is_no_handle() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut words = [0; 8];
    for address in [0, 8, 0x1000, words.as_ptr().expose_provenance(), usize::MAX] {
        for kind in KINDS {
            assert_eq!(destroy(kind, address), Err(Errno::EINVAL), "{kind:?}");
            let needs = !uses(kind, [address; 3]).is_empty();
            // A completion queue does not need a channel.
            if needs && !(kind == Kind::Queue && address == 0) {
                let refused = create(&side, kind, [address; 3], &mut words);
                assert_eq!(refused, Err(Errno::EINVAL), "{kind:?}");
            }
        }
    }
    side.close();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever a program creates and destroys, and with whatever handles: an object that another object uses is busy,
    /// an invalid handle fails with `EINVAL`, and all other calls succeed.
    #[test]
    fn objects_are_busy_while_they_are_used_and_invalid_when_they_are_gone(calls in calls()) {
        let side = Side::new(ibv_qp_type::IBV_QPT_RC);
        let mut words = [0; 8];
        let mut model = Model::default();
        let mut handles = vec![words.as_ptr().expose_provenance()];
        for call in calls {
            let handle = |n: usize| handles[n % handles.len()];
            match call {
                Call::Create(kind, on) => {
                    let on = on.map(handle);
                    let uses = uses(kind, on);
                    let expected = model.create(&uses);
                    let made = create(&side, kind, on, &mut words);
                    prop_assert_eq!(made.map(|_| ()), expected, "{:?}", call);
                    if let Ok(address) = made {
                        let uses = uses.into_iter().map(|(address, _)| address).collect();
                        model.0.insert(address, (kind, uses));
                        handles.push(address);
                    }
                }
                Call::Destroy(kind, of) => {
                    let address = handle(of);
                    let expected = model.destroy(address, kind);
                    prop_assert_eq!(destroy(kind, address), expected, "{:?}", call);
                    if expected.is_ok() {
                        model.0.remove(&address);
                    }
                }
            }
        }
        // Closing the device destroys all remaining objects.
        side.close();
        for (address, (kind, _)) in model.0 {
            prop_assert_eq!(destroy(kind, address), Err(Errno::EINVAL));
        }
    }
}
