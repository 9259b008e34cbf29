//! One spelling for each path.

use proptest::prelude::*;

use super::*;

fn normal(path: &str) -> String {
    Paths::Normalized.normalize(path).into_owned()
}

#[test]
fn f5_every_spelling_of_a_path_is_one_path() {
    for spelled in [
        "/login",
        "/%6Cogin",
        "/%6cogin",
        "//login",
        "/./login",
        "/a/../login",
        "/a/..;x/login",
        "/%2e%2E/login",
        "/../login",
        "/;x/login",
        "/login/",
        "/login//",
        "/login/.",
        "/login/a/..",
        "/login;x=1",
        "/login;x=1/",
        "/lo%67in?y",
        "/login#top",
        "/login?a/../b",
    ] {
        assert_eq!(normal(spelled), "/login", "{spelled}");
    }
    for root in ["/", "//", "/.", "/..", "/a/..", "/;x", "/?x", "/%2E/"] {
        assert_eq!(normal(root), "/", "{root}");
    }
}

#[test]
fn f5_a_character_that_means_something_else_when_decoded_stays_encoded() {
    for (spelled, expected) in [
        // A separator, a parameter, a query, a fragment and the escape itself.
        ("/a%2fb", "/a%2Fb"),
        ("/a%3bb", "/a%3Bb"),
        ("/a%3fb", "/a%3Fb"),
        ("/a%23b", "/a%23b"),
        ("/a%252fb", "/a%252fb"),
        ("/a%5c..%5cb", "/a%5C..%5Cb"),
        ("/a%00", "/a%00"),
        // No decoding makes another encoded byte.
        ("/%%36C", "/%256C"),
        ("/%25%36%43", "/%256C"),
        ("/100%", "/100%25"),
        ("/%g0", "/%25g0"),
        // Characters that have two spellings otherwise.
        ("/v1/models/x%3Agenerate", "/v1/models/x:generate"),
        ("/%40me", "/@me"),
        ("/a b", "/a%20b"),
        ("/{a}", "/%7Ba%7D"),
        // UTF-8, and what is not.
        ("/caf%C3%a9", "/café"),
        ("/café", "/café"),
        ("/%f0%9f%8d%b5", "/🍵"),
        ("/%ff", "/%FF"),
        ("/%C3%28", "/%C3("),
        ("/%c3%C3%A9", "/%C3é"),
        ("/%c0%af", "/%C0%AF"),
        ("/%ed%a0%80", "/%ED%A0%80"),
        // No path.
        ("*", "*"),
        ("login/", "login/"),
        ("", ""),
    ] {
        assert_eq!(normal(spelled), expected, "{spelled}");
    }
}

#[test]
fn f5_case_is_folded_and_a_raw_path_left_alone_where_that_is_set() {
    let folded = |path| Paths::CaseInsensitive.normalize(path).into_owned();
    assert_eq!(folded("/LogIn/%4C%2f"), "/login/l%2F");
    assert_eq!(folded("/CAF%C3%89"), "/café");
    assert_eq!(Paths::Raw.normalize("//%6C/..?x"), "//%6C/..?x");
    assert_eq!(normal("/LogIn"), "/LogIn");
}

#[test]
fn f5_the_beginning_of_a_path_may_end_within_a_segment() {
    let stem = |stem| Paths::Normalized.normalize_stem(stem);
    for (written, expected) in [
        ("", ""),
        ("/", "/"),
        ("/api/", "/api/"),
        ("//api//", "/api/"),
        ("/a/../api/%6C", "/api/l"),
        ("/api/.", "/api/."),
        ("/api/..", "/api/.."),
        ("/a%2", "/a%2"),
        ("/a%2f", "/a%2F"),
        ("/my file", "/my%20file"),
        ("login", "login"),
    ] {
        assert_eq!(stem(written), expected, "{written}");
    }
    assert_eq!(Paths::Raw.normalize_stem("//api/"), "//api/");
}

/// Texts of the characters that matter.
fn spelled() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => Just("/".to_owned()),
        2 => Just(".".to_owned()),
        1 => Just(";".to_owned()),
        1 => Just("?".to_owned()),
        2 => Just("%".to_owned()),
        3 => any::<u8>().prop_map(|byte| format!("%{byte:02x}")),
        1 => any::<u8>().prop_map(|byte| format!("%{byte:02X}")),
        1 => Just("%C3%A9".to_owned()),
        2 => "[a-fA-F0-9 é\\\\{]",
        1 => any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]

    #[test]
    fn f5_normalising_twice_changes_nothing_more_and_copies_nothing(path in spelled()) {
        for paths in [Paths::Normalized, Paths::CaseInsensitive, Paths::Raw] {
            let once = paths.normalize(&path).into_owned();
            let is_same = matches!(paths.normalize(&once), Cow::Borrowed(twice) if twice == once);
            prop_assert!(is_same, "{path}: {once}");
            prop_assert!(once.len() <= path.len().saturating_mul(3), "{path}: {once}");
        }
    }

    #[test]
    fn f5_a_stem_is_the_beginning_of_what_it_begins(path in spelled(), rest in "[a-z]{1,3}") {
        // The rest completes the last segment, if no query or parameter has begun and no encoded
        // byte is cut off.
        let path = path.replace(['?', '#', ';'], "");
        prop_assume!(cut_off(&path) == path.len());
        let stem = Paths::Normalized.normalize_stem(&path);
        let whole = normal(&format!("{path}{rest}"));
        prop_assert!(whole.starts_with(&stem), "{path} + {rest}: {stem}, {whole}");
    }
}
