//! Headers of tensors: what is read lies within the content, and is the same when it is laid out again.

#![no_main]

use std::collections::BTreeMap;

use gdr_object::TensorIndex;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (data, json) = input;
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json);
    let content = bytes.len() as u64 + u64::from(data);
    let _ = TensorIndex::parse(json, content);
    let Ok(index) = TensorIndex::parse(&bytes, content) else {
        return;
    };
    let tensors = index.tensors().iter();
    for tensor in tensors.clone() {
        assert!(tensor.offset + tensor.bytes <= content);
    }
    let described = tensors.map(|it| (it.name.clone(), it.dtype, it.shape.clone()));
    if let Ok(made) = TensorIndex::new(described, BTreeMap::new()) {
        let again = TensorIndex::parse(made.header(), made.bytes()).expect("it was made");
        assert_eq!(again.tensors(), made.tensors());
    }
});
