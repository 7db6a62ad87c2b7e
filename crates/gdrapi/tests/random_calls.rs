//! Random sequences of calls with random arguments, right and wrong: every answer is an errno
//! value that fits, and nothing crashes.

use std::ffi::{c_int, c_void};
use std::ptr;

use gdrapi::abi::{Gdr, gdr_info_v1_t, gdr_info_v2_t, gdr_mh_t, gdr_t};
use gdrapi::*;
use proptest::prelude::*;

/// A number that is interesting in some place.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..64u64).prop_map(|page| page * 4096),
        2 => 0..300u64,
        2 => Just(65536u64),
        1 => Just(u64::MAX),
        1 => (0..64u32).prop_map(|bit| 1 << bit),
        1 => any::<u64>(),
    ]
}

#[derive(Clone, Debug)]
struct Call {
    function: u8,
    /// Which of the values that earlier calls returned to use; past the end: the number instead.
    library: usize,
    handle: usize,
    mapping: usize,
    numbers: [u64; 3],
}

fn call() -> impl Strategy<Value = Call> {
    let numbers = [number(), number(), number()];
    (0..17u8, 0..6usize, 0..9usize, 0..9usize, numbers).prop_map(
        |(function, library, handle, mapping, numbers)| Call {
            function,
            library,
            handle,
            mapping,
            numbers,
        },
    )
}

/// Everything that calls have returned, stale or not.
#[derive(Default)]
struct Returned {
    libraries: Vec<gdr_t>,
    handles: Vec<gdr_mh_t>,
    mappings: Vec<*mut c_void>,
}

impl Returned {
    /// Makes the call. Host memory is `host`; sizes that would leave it are allowed only where
    /// the library must refuse them first, because no mapping is as large.
    fn make(&mut self, call: &Call, host: &mut [u8]) -> c_int {
        let pick = |len: usize, at: usize| len.checked_sub(1 + at % 4).filter(|_| at < 4);
        let [a, b, c] = call.numbers;
        let g = pick(self.libraries.len(), call.library)
            .map_or(ptr::without_provenance_mut::<Gdr>(a as usize), |at| {
                self.libraries[at]
            });
        let handle =
            pick(self.handles.len(), call.handle).map_or(gdr_mh_t { h: a }, |at| self.handles[at]);
        let va = pick(self.mappings.len(), call.mapping)
            .map_or(ptr::without_provenance_mut(b as usize), |at| {
                self.mappings[at].wrapping_byte_add(b as usize % 70_000)
            });
        let exact = pick(self.mappings.len(), call.mapping).map_or(va, |at| self.mappings[at]);
        let address = if c % 5 == 0 {
            b
        } else {
            SIMULATED_BUFFER.get().wrapping_add(b)
        };
        let (mut new, mut info, mut old) = (
            gdr_mh_t::default(),
            gdr_info_v2_t::default(),
            gdr_info_v1_t::default(),
        );
        let (mut mapped, mut one, mut two, mut name) = (ptr::null_mut(), 0, 0, ptr::null());
        let host = host.as_mut_ptr().cast::<c_void>();
        // SAFETY: outputs are valid. Copies lie within `host`, which has room for a whole mapping
        // and the bytes round it, or are larger than any mapping and refused.
        let answer = unsafe {
            match call.function {
                0 => {
                    let g = gdr_open();
                    assert!(!g.is_null());
                    self.libraries.push(g);
                    0
                }
                1 => gdr_close(g),
                2 => gdr_pin_buffer(g, address, c as usize, a % 2, 0, &mut new),
                3 | 4 => gdr_pin_buffer_v2(g, address, c as usize, (a % 3) as u32, &mut new),
                5 | 6 => gdr_map(g, handle, &mut mapped, c as usize),
                7 => gdr_map_v2(g, handle, &mut mapped, c as usize, (b % 6) as c_int - 1),
                8 => gdr_unmap(g, handle, exact, c as usize),
                9 => gdr_unpin_buffer(g, handle),
                10 => gdr_get_info(g, handle, &mut old),
                11 => gdr_get_info_v2(g, handle, &mut info),
                12 => gdr_copy_to_mapping(handle, va, host, c as usize),
                13 => gdr_copy_from_mapping(handle, host, va, c as usize),
                14 => gdr_get_callback_flag(g, handle, &mut one),
                15 => gdr_get_attribute(g, c as u32, &mut one),
                _ => {
                    gdr_runtime_get_version(&mut one, &mut two);
                    assert_eq!((one, two), (2, 6));
                    assert_eq!(gdr_get_mapping_type_string(1, &mut name), 0);
                    gdr_driver_get_version(g, &mut one, &mut two)
                }
            }
        };
        if answer == 0 && new != gdr_mh_t::default() {
            self.handles.push(new);
        }
        if answer == 0 && !mapped.is_null() {
            self.mappings.push(mapped);
        }
        answer
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_calls_crashes(calls in prop::collection::vec(call(), 1..80)) {
        start_simulation();
        let mut host = vec![0u8; 2 << 20];
        let mut returned = Returned::default();
        for call in &calls {
            let answer = returned.make(call, &mut host);
            let fits = [0, libc::EINVAL, libc::EAGAIN, libc::EOPNOTSUPP].contains(&answer);
            prop_assert!(fits, "{:?} answers {}", call, answer);
        }
        for g in returned.libraries {
            let answer = gdr_close(g);
            prop_assert!(answer == 0 || answer == libc::EINVAL);
        }
    }
}

fn start_simulation() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the only test of this binary, and so the only thread that looks at variables.
        unsafe {
            std::env::set_var("GDR_BACKEND", "sim");
            std::env::set_var("GDR_SIM_BYTES", "1048576");
            std::env::remove_var("GDRCOPY_ENABLE_LOGGING");
        }
    });
}
