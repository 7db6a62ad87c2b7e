//! Environment variables read by relevant libraries.

use crate::source::Datum;

/// The prefixes of their names.
const PREFIXES: [&str; 6] = [
    "NCCL_",
    "UCX_",
    "NVSHMEM_",
    "MLX5_",
    "GDR_",
    "CUDA_VISIBLE_DEVICES",
];

pub(super) fn read() -> Datum<Vec<u8>> {
    Ok(chosen(std::env::vars_os()).into_bytes())
}

fn chosen(all: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> String {
    let mut lines: Vec<String> = all
        .map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().replace(['\n', '\r'], " "),
            )
        })
        .filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect();
    lines.sort();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_of_this_field_are_taken() {
        let all = [
            ("PATH", "/bin"),
            ("UCX_TLS", "rc\nx"),
            ("NCCL_IB_HCA", "mlx5_0"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let all = all.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(
            chosen(all.into_iter()),
            "NCCL_IB_HCA=mlx5_0\nUCX_TLS=rc x\n"
        );
    }
}
