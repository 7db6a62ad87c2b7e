//! Random sequences of calls with random arguments, valid and invalid: every call returns an expected
//! errno value, and none crashes.

use std::ffi::{c_int, c_void};
use std::ptr;

use gdrapi::abi::{Gdr, gdr_info_v1_t, gdr_info_v2_t, gdr_mh_t, gdr_t};
use gdrapi::*;
use proptest::prelude::*;

/// Generates numbers that are edge cases of some argument.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        9 => (0..4u64).prop_map(|page| page * 65536),
        2 => (1..64u64).prop_map(|page| page * 4096),
        4 => 0..300u64,
        1 => Just(u64::MAX),
        1 => (0..64u32).prop_map(|bit| 1 << bit),
        1 => any::<u64>(),
    ]
}

/// Chooses between a valid argument and any number.
fn sensible() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.85)
}

/// Generates the number of a function in [`Returned::make`]: rarely one that closes or opens.
fn function() -> impl Strategy<Value = u8> {
    prop_oneof![
        1 => 0..2u8,
        6 => 2..5u8,
        10 => 5..9u8,
        2 => 9..11u8,
        3 => 11..13u8,
        12 => 13..17u8,
        3 => 17..20u8,
    ]
}

#[derive(Clone, Debug)]
struct Call {
    function: u8,
    /// Which of the latest handles to use.
    handle: usize,
    sensible_library: bool,
    sensible_handle: bool,
    sensible_address: bool,
    sensible_size: bool,
    numbers: [u64; 3],
}

fn call() -> impl Strategy<Value = Call> {
    let sensible = (sensible(), sensible(), sensible(), sensible());
    let numbers = [number(), number(), number()];
    (function(), 0..4usize, sensible, numbers).prop_map(|(function, handle, sensible, numbers)| {
        Call {
            function,
            handle,
            sensible_library: sensible.0,
            sensible_handle: sensible.1,
            sensible_address: sensible.2,
            sensible_size: sensible.3,
            numbers,
        }
    })
}

/// A handle that was returned and may be stale.
#[derive(Clone, Copy)]
struct Pin {
    library: gdr_t,
    handle: gdr_mh_t,
    /// The address of its last mapping.
    mapping: *mut c_void,
}

/// Results of all calls, stale or not.
#[derive(Default)]
struct Returned {
    libraries: Vec<gdr_t>,
    pins: Vec<Pin>,
}

impl Returned {
    /// Makes the call. `host` is larger than the largest mapping.
    fn make(&mut self, call: &Call, host: &mut [u8]) -> c_int {
        let [a, b, c] = call.numbers;
        let at = self.pins.len().checked_sub(1 + call.handle);
        let pin = at.map(|at| self.pins[at]);
        let library = pin.map(|pin| pin.library).filter(|_| call.function > 4);
        let library = library.or(self.libraries.last().copied());
        let g = library
            .filter(|_| call.sensible_library)
            .unwrap_or(ptr::without_provenance_mut::<Gdr>(a as usize));
        let handle = pin
            .filter(|_| call.sensible_handle)
            .map_or(gdr_mh_t { h: a }, |pin| pin.handle);
        let mapping = pin
            .filter(|_| call.sensible_address)
            .map_or(ptr::without_provenance_mut(b as usize), |pin| pin.mapping);
        let inside = mapping.wrapping_byte_add(a as usize % 5000);
        let address = if call.sensible_address {
            SIMULATED_BUFFER.get() + b % 12 * 65536
        } else {
            b
        };
        let size = if call.sensible_size {
            1 + c as usize % 65536
        } else {
            c as usize
        };
        let mut new = gdr_mh_t::default();
        let (mut info, mut old) = (gdr_info_v2_t::default(), gdr_info_v1_t::default());
        let (mut mapped, mut one, mut two, mut name) = (ptr::null_mut(), 0, 0, ptr::null());
        let host = host.as_mut_ptr().cast::<c_void>();
        // SAFETY: outputs are valid. A copy that is accepted is inside a mapping, and no mapping is larger than `host`.
        let answer = unsafe {
            match call.function {
                0 => {
                    let g = gdr_open();
                    assert!(!g.is_null());
                    self.libraries.push(g);
                    0
                }
                1 => gdr_close(g),
                2 => gdr_pin_buffer(
                    g,
                    address,
                    size,
                    u64::from(!call.sensible_handle),
                    0,
                    &mut new,
                ),
                3 | 4 => gdr_pin_buffer_v2(g, address, size, (a % 3) as u32, &mut new),
                5..=7 => gdr_map(g, handle, &mut mapped, size),
                8 => gdr_map_v2(g, handle, &mut mapped, size, (b % 6) as c_int - 1),
                9 => gdr_unmap(g, handle, mapping, size),
                10 => gdr_unpin_buffer(g, handle),
                11 => gdr_get_info(g, handle, &mut old),
                12 => gdr_get_info_v2(g, handle, &mut info),
                13 | 14 => gdr_copy_to_mapping(handle, inside, host, size),
                15 | 16 => gdr_copy_from_mapping(handle, host, inside, size),
                17 => gdr_get_callback_flag(g, handle, &mut one),
                18 => gdr_get_attribute(g, (c % 6) as u32, &mut one),
                _ => {
                    gdr_runtime_get_version(&mut one, &mut two);
                    assert_eq!((one, two), (2, 6));
                    assert_eq!(gdr_get_mapping_type_string(1, &mut name), 0);
                    gdr_driver_get_version(g, &mut one, &mut two)
                }
            }
        };
        if answer == 0 && new != gdr_mh_t::default() {
            self.pins.push(Pin {
                library: g,
                handle: new,
                mapping: ptr::null_mut(),
            });
        }
        if let Some(pin) = at
            .map(|at| &mut self.pins[at])
            .filter(|pin| pin.handle == handle)
            && answer == 0
            && !mapped.is_null()
        {
            pin.mapping = mapped;
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
        returned.libraries.push(gdr_open());
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
        // SAFETY: this is the binary's only test, so no other thread reads variables.
        unsafe {
            std::env::set_var("GDR_BACKEND", "sim");
            std::env::set_var("GDR_SIM_BYTES", "1048576");
            std::env::remove_var("GDRCOPY_ENABLE_LOGGING");
        }
    });
}
