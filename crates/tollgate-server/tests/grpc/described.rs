use super::*;
use prost::Message as _;
use prost_types::FileDescriptorSet;

/// The file of the service, which the set contains with all its dependencies.
const FILE: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The descriptor set from which the types were generated, with thousands of other messages.
fn all_descriptions() -> FileDescriptorSet {
    let cargo = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let version = cargo(&["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let metadata = ["metadata", "--format-version", "1", "--offline", "--filter-platform", host];
    let reported: Value = serde_json::from_str(&cargo(&metadata)).unwrap();
    let types = |package: &&Value| package["name"] == "envoy-types";
    let manifest = &reported["packages"].as_array().unwrap().iter().find(types).unwrap()["manifest_path"];
    let file = Path::new(manifest.as_str().unwrap()).with_file_name("src/generated/types.bin");
    FileDescriptorSet::decode(&*fs::read(file).unwrap()).unwrap()
}

#[test]
fn the_reflection_set_is_a_subset_of_the_generated_types_set() {
    let mut set = all_descriptions();
    let mut wanted = vec![FILE.to_owned()];
    for index in 0.. {
        let Some(name) = wanted.get(index).cloned() else { break };
        let file = set.file.iter().find(|file| file.name() == name).unwrap();
        let new: Vec<_> = file.dependency.iter().filter(|other| !wanted.contains(other)).cloned().collect();
        wanted.extend(new);
    }
    set.file.retain(|file| wanted.iter().any(|name| name == file.name()));
    // Comments are most of it.
    set.file.iter_mut().for_each(|file| file.source_code_info = None);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/grpc/rls.bin");
    if std::env::var_os("TOLLGATE_WRITE").is_some() {
        fs::write(&file, set.encode_to_vec()).unwrap();
    }
    let written = FileDescriptorSet::decode(&*fs::read(&file).unwrap()).unwrap();
    assert!(written == set, "envoy-types has changed: run this with TOLLGATE_WRITE=1");
}
