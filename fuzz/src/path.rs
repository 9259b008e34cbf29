//! Whatever path comes, its normal form is normal, bounded, and says nothing but what it is: no
//! separator, dot segment, parameter or query is left that an application might read otherwise.
#![no_main]

use std::borrow::Cow;

use tollgate::Paths;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(path) = std::str::from_utf8(input) else { return };
    assert_eq!(Paths::Raw.normalize(path), path);
    for paths in [Paths::Normalized, Paths::CaseInsensitive] {
        let normal = paths.normalize(path);
        assert!(normal.len() <= 3 * path.len());
        assert!(matches!(paths.normalize(&normal), Cow::Borrowed(twice) if twice == normal));
        let Some(segments) = normal.strip_prefix('/') else {
            assert_eq!(normal, path);
            continue;
        };
        assert!(segments.is_empty() || segments.split('/').all(|segment| !["", ".", ".."].contains(&segment)));
        assert!(!normal.contains(['?', '#', ';', '\\', ' ']) && !normal.bytes().any(|byte| byte.is_ascii_control()));
        // The spelling changes nothing: neither with every byte encoded, nor with slashes doubled.
        let encoded = |byte: u8| if byte == b'/' { "//./".into() } else { format!("%{byte:02x}") };
        let spelled: String = match normal.contains('%') {
            true => normal.replace('/', "//./"),
            false => normal.bytes().map(encoded).collect(),
        };
        assert_eq!(paths.normalize(&spelled), normal);
        assert_eq!(paths.normalize(&format!("{normal}/;x?y")), normal);
    }
});
