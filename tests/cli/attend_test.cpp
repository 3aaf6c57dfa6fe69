// `serinus attend` as a user runs it, and its readers on files that are not what they should be.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <serinus/error.h>

#include "cli/tensor_files.h"
#include "gpu/device.h"
#include "tests/cli/run_command.h"

namespace serinus::cli {
namespace {

namespace fs = std::filesystem;

class Attend : public ::testing::Test {
 protected:
  Attend() {
    std::string name = (fs::temp_directory_path() / "serinus_attend_XXXXXX").string();
    dir = mkdtemp(name.data());
  }
  ~Attend() override { fs::remove_all(dir); }

  std::string path(const std::string& name) const { return (dir / name).string(); }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  std::string read(const std::string& name) const { return cli::read(path(name)); }

  // The example, and each of its tensors as .npy.
  void make_example() const {
    ASSERT_EQ(run_command("attend --example " + dir.string()).exit_code, 0);
    for (const Tensor& t : read_safetensors(path("example.safetensors"))) {
      write_npy(path(t.name() + ".npy"), t);
    }
  }

  static void expect_refused(const CommandResult& r, const std::string& id, const std::string& word,
                             int exit_code = 3) {
    EXPECT_EQ(r.exit_code, exit_code) << r.err;
    EXPECT_NE(r.err.find("error " + id), std::string::npos) << r.err;
    EXPECT_NE(r.err.find(word), std::string::npos) << r.err;
  }

  fs::path dir;
};

std::string npy(const std::string& dict, std::size_t bytes, char version = 1) {
  std::string text = dict + "\n";
  std::string file("\x93NUMPY", 6);
  file += version;
  file += '\0';
  file += static_cast<char>(text.size());
  file += static_cast<char>(text.size() >> 8);
  if (version > 1) file += std::string(2, '\0');
  return file + text + std::string(bytes, '\0');
}

std::string safetensors(const std::string& header, std::size_t bytes) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(bytes, '\0');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST_F(Attend, TheExamplePassesItsCheck) {
  make_example();
  const CommandResult r = run_command("attend " + path("example.safetensors") + " --check --out " +
                                      path("result.safetensors") + " --threads 1");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("TFLOPS"), std::string::npos);
  EXPECT_EQ(r.out.find("OUT OF BUDGET"), std::string::npos);
  const auto tensors = read_safetensors(path("result.safetensors"));
  ASSERT_EQ(tensors.size(), 3u);
  for (const Tensor& t : tensors) {
    const std::vector<std::int64_t> per_head = {8, 16};
    const std::vector<std::int64_t> per_column = {8, 16, 512};
    EXPECT_EQ(t.shape(), t.name() == "out" ? per_column : per_head);
  }
}

TEST_F(Attend, NpyAndSafetensorsAgree) {
  make_example();
  const std::string all = "attend --q " + path("q.npy") + " --kv " + path("kv.npy") +
                          " --indices " + path("indices.npy") + " --q-scale " +
                          path("q_scale.npy") + " --kv-scale " + path("kv_scale.npy") +
                          " --attn-sink " + path("attn_sink.npy") + " --check --out " + path("npy");
  const CommandResult r = run_command(all);
  ASSERT_EQ(r.exit_code, 0) << r.err;
  ASSERT_EQ(run_command("attend " + path("example.safetensors") + " --out " + path("st")).exit_code,
            0);
  for (const std::string name : {"out.npy", "max_logits.npy", "lse.npy"}) {
    EXPECT_FALSE(read("npy/" + name).empty());
    EXPECT_EQ(read("npy/" + name), read("st/" + name)) << name;
  }
  const Tensor out = read_npy(path("npy/out.npy"));
  EXPECT_EQ(out.dtype(), DType::bf16);
}

TEST_F(Attend, AnotherScaleIsAnotherResult) {
  make_example();
  const std::string file = "attend " + path("example.safetensors");
  ASSERT_EQ(run_command(file + " --sm-scale -0.3 --check --out " + path("a")).exit_code, 0);
  ASSERT_EQ(run_command(file + " --out " + path("b")).exit_code, 0);
  EXPECT_NE(read("a/lse.npy"), read("b/lse.npy"));
  expect_refused(run_command(file + " --sm-scale nan"), "SRN2013", "nan", 2);
}

TEST_F(Attend, WhatPIsRoundedTo) {
  make_example();
  const std::string file = "attend " + path("example.safetensors") + " --check";
  EXPECT_EQ(run_command(file + " --p-dtype bf16").exit_code, 0);
  EXPECT_EQ(run_command(file + " --p-dtype f32").exit_code, 0);
  expect_refused(run_command(file + " --p-dtype fp8"), "SRN6001", "p-dtype", 2);
}

TEST_F(Attend, WhatIsMissingIsNamed) {
  make_example();
  expect_refused(run_command("attend"), "SRN6001", "--example DIR", 2);
  expect_refused(run_command("attend --q " + path("q.npy")), "SRN4003", "no tensor kv");
  expect_refused(run_command("attend " + path("none.safetensors")), "SRN4101", "none.safetensors");
  expect_refused(run_command("attend " + dir.string()), "SRN4101", "no regular file");
  expect_refused(run_command("attend --threads -1"), "SRN6001", "threads", 2);
}

TEST_F(Attend, WrongShapesAndDtypes) {
  make_example();
  const std::string file = "attend " + path("example.safetensors");
  expect_refused(run_command(file + " --q " + path("attn_sink.npy")), "SRN1002", "q must have", 2);
  expect_refused(run_command(file + " --indices " + path("kv.npy")), "SRN1003", "indices s_q", 2);
  write("one.npy", npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }", 4));
  expect_refused(run_command(file + " --q-scale " + path("one.npy")), "SRN1004", "got int32", 2);
  expect_refused(run_command(file + " --topk-length " + path("indices.npy")), "SRN1002",
                 "topk_length", 2);
}

TEST_F(Attend, OutputsThatCannotBeWrittenLeaveNothing) {
  make_example();
  const std::string file = "attend " + path("example.safetensors");
  expect_refused(run_command(file + " --out " + path("no/such/folder.safetensors")), "SRN4004",
                 "folder.safetensors");
  expect_refused(run_command(file + " --out " + path("q.npy")), "SRN4004", "q.npy");
  // A full disk: no file may grow beyond 32 KB.
  expect_refused(run_command("attend --example " + path("x") +
                             " >/dev/null; ulimit -f 32; "
                             "trap '' XFSZ; '" SERINUS_COMMAND_PATH "' " +
                             file + " --out " + path("full.safetensors")),
                 "SRN4004", "full.safetensors");
  EXPECT_FALSE(fs::exists(path("full.safetensors")));
  EXPECT_FALSE(fs::exists(path("full.safetensors.partial")));
}

TEST_F(Attend, DamagedNpyFiles) {
  make_example();
  const std::string good = read("q.npy");
  const struct {
    const char* what;
    std::string bytes;
    const char* word;
    const char* id = "SRN4001";
  } cases[] = {
      {"empty", "", "NUMPY"},
      {"other file", "PK\x03\x04 this is a zip", "NUMPY"},
      {"cut magic", good.substr(0, 9), "ends at byte 9"},
      {"cut header", good.substr(0, 60), "header should end"},
      {"cut data", good.substr(0, good.size() - 1), "bytes of data"},
      {"more data", good + "x", "bytes of data"},
      {"version", npy("{}", 0, 9), "version 9"},
      {"2^60 elements",
       npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1152921504606846976,), }", 8),
       "needs 4611686018427387904 bytes"},
      {"2^70 elements",
       npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1073741824), }", 8),
       "more than 2^63"},
      {"size beyond 64 bits",
       npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 8),
       "beyond 64 bits"},
      {"negative size", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 8),
       "a size expected"},
      {"many dimensions",
       npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1), }", 1),
       "more than 6"},
      {"fortran", npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2), }", 4), "Fortran"},
      {"big-endian", npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4), ">f4",
       "SRN4002"},
      {"objects", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", 8), "|O",
       "SRN4002"},
      {"no shape", npy("{'descr': '|u1', 'fortran_order': False, }", 4), "lacks"},
      {"twice", npy("{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (), }", 1),
       "twice"},
      {"after the dict", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), } x", 1),
       "after its dict"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    write("bad.npy", c.bytes);
    expect_refused(run_command("attend " + path("example.safetensors") + " --q " + path("bad.npy")),
                   c.id, c.word);
  }
}

TEST_F(Attend, DamagedSafetensorsFiles) {
  make_example();
  const std::string good = read("example.safetensors");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  const std::string u8 = entry("q", "U8", "[4]", "[0,4]");
  const struct {
    const char* what;
    std::string bytes;
    const char* word;
    const char* id = "SRN4001";
  } cases[] = {
      {"empty", "", "ends at byte 0"},
      {"cut length", good.substr(0, 7), "ends at byte 7"},
      {"cut header", good.substr(0, 100), "bytes long"},
      {"cut data", good.substr(0, good.size() - 1), "beyond their end"},
      {"huge header", std::string(8, '\xff') + "{}", "18446744073709551615"},
      {"no JSON", safetensors("{\"q\":", 0), "no JSON"},
      {"not UTF-8", safetensors("{\"\xff\xfe\":1}", 0), "no JSON"},
      {"deep", safetensors(deep, 0), "too deep"},
      {"array", safetensors("[1]", 0), "no JSON object"},
      {"entry of another kind", safetensors("{\"q\":[1]}", 0), "must have dtype"},
      {"name twice", safetensors("{" + u8 + "," + u8 + "}", 4), "twice"},
      {"dtype", safetensors("{" + entry("q", "F16", "[2]", "[0,4]") + "}", 4), "F16", "SRN4002"},
      {"shape", safetensors("{" + entry("q", "U8", "[-4]", "[0,4]") + "}", 4), "shape"},
      {"fraction", safetensors("{" + entry("q", "U8", "[4.0]", "[0,4]") + "}", 4), "shape"},
      {"2^60 elements",
       safetensors("{" + entry("q", "F32", "[1152921504606846976]", "[0,4]") + "}", 4),
       "needs 4611686018427387904 bytes"},
      {"2^80 elements",
       safetensors("{" + entry("q", "F32", "[1099511627776,1099511627776]", "[0,4]") + "}", 4),
       "memory cannot hold"},
      {"offsets", safetensors("{" + entry("q", "U8", "[4]", "[4,0]") + "}", 4), "data_offsets"},
      {"three offsets", safetensors("{" + entry("q", "U8", "[4]", "[0,4,4]") + "}", 4),
       "two numbers"},
      {"outside", safetensors("{" + u8 + "}", 3), "beyond their end"},
      {"overlap", safetensors("{" + u8 + "," + entry("kv", "U8", "[4]", "[2,6]") + "}", 6),
       "over the one before"},
      {"hole", safetensors("{" + u8 + "," + entry("kv", "U8", "[4]", "[6,10]") + "}", 10), "hole"},
      {"rest", safetensors("{" + u8 + "}", 9), "belong to no tensor"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    write("bad.safetensors", c.bytes);
    expect_refused(run_command("attend " + path("bad.safetensors")), c.id, c.word);
  }
}

TEST_F(Attend, TensorsSurviveTheWayThroughAFile) {
  const Tensor scalar("scalar", DType::f32, {});
  *scalar.as<float>() = 3.5f;
  const Tensor codes("codes", DType::e4m3, {3, 5});
  for (int i = 0; i < 15; ++i) codes.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 17);
  const Tensor nothing("nothing", DType::i32, {0, 7});
  const Tensor* const all[] = {&scalar, &codes, &nothing};
  write_safetensors(path("all.safetensors"), all);
  const auto back = read_safetensors(path("all.safetensors"));
  ASSERT_EQ(back.size(), 3u);
  for (const Tensor& t : back) {
    const Tensor* const want = t.name() == "scalar"  ? &scalar
                               : t.name() == "codes" ? &codes
                                                     : &nothing;
    EXPECT_EQ(t.name(), want->name());
    EXPECT_EQ(t.dtype(), want->dtype());
    EXPECT_EQ(t.shape(), want->shape());
    EXPECT_TRUE(std::ranges::equal(t.bytes(), want->bytes()));
    write_npy(path("one.npy"), t);
    const Tensor one = read_npy(path("one.npy"));
    EXPECT_EQ(one.shape(), t.shape());
    EXPECT_TRUE(std::ranges::equal(one.bytes(), t.bytes()));
    EXPECT_EQ(one.dtype(), t.dtype() == DType::e4m3 ? DType::u8 : t.dtype());
  }
}

TEST_F(Attend, OnTheGpuOrWhyNot) {
  make_example();
  const CommandResult r =
      run_command("attend " + path("example.safetensors") + " --check --device cuda");
  const gpu::Survey gpus = gpu::survey();
  if (!gpus.compiled) {
    expect_refused(r, "SRN7001", "cuda:0", 2);
  } else if (gpus.devices.empty()) {
    expect_refused(r, "SRN7002", "cuda:0", 2);
  } else if (!gpus.devices[0].sparse_mla) {
    expect_refused(r, "SRN7003", "cuda:0", 2);
  } else {
    EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
    EXPECT_NE(r.out.find(gpus.devices[0].name), std::string::npos) << r.out;
  }
  expect_refused(run_command("attend " + path("example.safetensors") + " --device gpu0"), "SRN6001",
                 "gpu0", 2);
  const CommandResult far =
      run_command("attend " + path("example.safetensors") + " --device cuda:9999");
  EXPECT_EQ(far.exit_code, 2) << far.err;
  EXPECT_NE(far.err.find("cuda:9999"), std::string::npos) << far.err;
}

TEST_F(Attend, BenchNeedsTheGpu) {
  const gpu::Survey gpus = gpu::survey();
  if (!gpus.devices.empty() && gpus.devices[0].sparse_mla) GTEST_SKIP() << "there is one";
  const CommandResult r = run_command("bench sparse_mla --json");
  EXPECT_EQ(r.exit_code, 2) << r.err;
  EXPECT_NE(r.err.find("error SRN700"), std::string::npos) << r.err;
  EXPECT_EQ(r.out, "");
}

// Shapes of empty tensors may multiply to what no output can hold.
TEST_F(Attend, SizesThatNoOutputHolds) {
  const auto entry = [](const char* name, const char* dtype, const char* shape) {
    return std::string("\"") + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape +
           R"(,"data_offsets":[0,0]})";
  };
  write("vast.safetensors", safetensors("{" + entry("q", "U8", "[1099511627776,1048576,0]") + "," +
                                            entry("kv", "U8", "[0,1,0]") + "," +
                                            entry("indices", "I32", "[1099511627776,1,0]") + "}",
                                        0));
  const CommandResult r = run_command("attend " + path("vast.safetensors"));
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("SRN1013"), std::string::npos) << r.err;
}

}  // namespace
}  // namespace serinus::cli
