// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "reader/pickle_reader.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/pickle_samples.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

using test::bytes_of;

std::shared_ptr<const Pickle> read(std::string bytes) {
  return read_pickle(std::move(bytes));
}

// The texts of the values that one-value pickles hold.
std::string read_text(const std::string& bytes, NodeKind kind) {
  const auto pickle = read(bytes);
  EXPECT_EQ(pickle->root_value().kind(), kind);
  return std::string(pickle->text(pickle->root()));
}

int64_t read_integer(const std::string& bytes) {
  const auto pickle = read(bytes);
  EXPECT_EQ(pickle->root_value().kind(), NodeKind::Int);
  return pickle->root_value().integer().value_or(-4711);
}

TEST(PickleReader, ReadsWhatPythonWritesInEveryProtocol) {
  for (size_t protocol = 0; protocol < test::kSamples.size(); ++protocol) {
    SCOPED_TRACE(protocol);
    const auto pickle = read(test::kSamples[protocol]);
    EXPECT_EQ(pickle->protocol(),
              protocol < 2 ? 2 : static_cast<int>(protocol));
    const Value root = pickle->root_value();
    ASSERT_TRUE(root.is_mapping());
    ASSERT_EQ(root.size(), 5U);
    EXPECT_EQ(root.key(2).string(), "nested");

    const Value ints = *root.find("ints");
    ASSERT_EQ(ints.size(), 6U);
    const std::vector<int64_t> expected = {1, -2, 300, 70000, int64_t{1} << 40};
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(ints.item(i).integer(), expected[i]);
    }
    EXPECT_EQ(ints.item(5).kind(), NodeKind::Long);
    EXPECT_EQ(pickle->text(ints.item(5).id()),
              bytes_of("\0\0\0\0\0\0\0\0\xc0"));

    const Value atoms = *root.find("atoms");
    ASSERT_EQ(atoms.size(), 3U);
    EXPECT_TRUE(atoms.item(0).is_none());
    EXPECT_EQ(atoms.item(1).boolean(), true);
    EXPECT_EQ(atoms.item(2).boolean(), false);

    const Value nested = *root.find("nested");
    EXPECT_TRUE(nested.is_call_of("collections", "OrderedDict"));
    const Value tuple = *nested.find("k");
    ASSERT_EQ(tuple.size(), 4U);
    EXPECT_EQ(tuple.item(3).string(), "\u00e9\n");
    const Value list = *root.find("list");
    EXPECT_EQ(list.item(1).number(), 1.5);
    EXPECT_EQ(list.id(), root.find("again")->id());
    EXPECT_EQ(tuple.item(0).id(), list.item(0).id());
  }
}

TEST(PickleReader, Integers) {
  EXPECT_EQ(read_integer("I-12\n."), -12);
  EXPECT_EQ(read_integer("L12L\n."), 12);
  EXPECT_EQ(read_integer("L-9223372036854775808L\n."), INT64_MIN);
  EXPECT_EQ(read_integer("L9223372036854775807\n."), INT64_MAX);
  EXPECT_EQ(read_integer("I-0\n."), 0);
  EXPECT_EQ(read_integer("J\xff\xff\xff\xff."), -1);
  EXPECT_EQ(read_integer("K\xff."), 255);
  EXPECT_EQ(read_integer("M\xff\xff."), 65535);
  EXPECT_EQ(read_integer(bytes_of("\x8a\0.")), 0);
  EXPECT_EQ(read_integer("\x8a\x01\xff."), -1);
  EXPECT_EQ(read_integer(bytes_of("\x8b\x02\0\0\0\xff\0.")), 255);
  // Ten bytes of which nine only repeat the sign.
  EXPECT_EQ(read_integer(bytes_of("\x8a\x0a\x05\0\0\0\0\0\0\0\0\0.")), 5);
  EXPECT_EQ(
      read_text(bytes_of("\x8a\x09\0\0\0\0\0\0\0\x80\0."), NodeKind::Long),
      bytes_of("\0\0\0\0\0\0\0\x80\0"));
  EXPECT_EQ(read_text("L9223372036854775808L\n.", NodeKind::Long),
            bytes_of("\0\0\0\0\0\0\0\x80\0"));
  EXPECT_EQ(read("I01\n.")->root_value().boolean(), true);
  EXPECT_EQ(read("I00\n.")->root_value().boolean(), false);
}

TEST(PickleReader, Floats) {
  EXPECT_EQ(read("F-1e+300\n.")->root_value().number(), -1e300);
  EXPECT_EQ(read("F5e-324\n.")->root_value().number(), 5e-324);
  EXPECT_TRUE(std::isinf(*read("F-inf\n.")->root_value().number()));
  EXPECT_TRUE(std::isnan(*read("Fnan\n.")->root_value().number()));
  EXPECT_EQ(read(bytes_of("G\xc0\x04\0\0\0\0\0\0."))->root_value().number(),
            -2.5);
}

TEST(PickleReader, Texts) {
  EXPECT_EQ(read_text("S'a\\'\\x41\\101\\n\\q'\n.", NodeKind::Str),
            "a'AA\n\\q");
  EXPECT_EQ(read_text("S\"\\xff\"\n.", NodeKind::Bytes), "\xff");
  EXPECT_EQ(read_text(bytes_of("T\x02\0\0\0ab."), NodeKind::Str), "ab");
  EXPECT_EQ(read_text("U\x01\x80.", NodeKind::Bytes), "\x80");
  EXPECT_EQ(read_text("V\xe9\\u20ac\\U0001F600\\\\u0041\\q\n.", NodeKind::Str),
            "\u00e9\u20ac\U0001F600\\\\u0041\\q");
  EXPECT_EQ(read_text("V\\ud800\n.", NodeKind::Str), "\xed\xa0\x80");
  EXPECT_EQ(read_text("\x8c\x02\xc3\xa9.", NodeKind::Str), "\u00e9");
  EXPECT_EQ(read_text(bytes_of("\x8d\x01\0\0\0\0\0\0\0a."), NodeKind::Str),
            "a");
  EXPECT_EQ(read_text("C\x01\xff.", NodeKind::Bytes), "\xff");
  EXPECT_EQ(read_text(bytes_of("B\x01\0\0\0\xff."), NodeKind::Bytes), "\xff");
  EXPECT_EQ(read_text(bytes_of("\x8e\x01\0\0\0\0\0\0\0\xff."), NodeKind::Bytes),
            "\xff");
  EXPECT_EQ(
      read_text(bytes_of("\x96\x01\0\0\0\0\0\0\0\xff."), NodeKind::ByteArray),
      "\xff");
}

TEST(PickleReader, StringsAreViewsOfThePickle) {
  const auto pickle = read(bytes_of("X\x03\0\0\0abc."));
  EXPECT_EQ(pickle->text(pickle->root()).data(), pickle->bytes().data() + 5);
}

TEST(PickleReader, Containers) {
  const auto size = [](const std::string& bytes, NodeKind kind) {
    const auto pickle = read(bytes);
    EXPECT_EQ(pickle->root_value().kind(), kind);
    return pickle->root_value().size();
  };
  EXPECT_EQ(size("(K\1K\2t.", NodeKind::Tuple), 2U);
  EXPECT_EQ(size(").", NodeKind::Tuple), 0U);
  EXPECT_EQ(size("N\x85.", NodeKind::Tuple), 1U);
  EXPECT_EQ(size("(K\1K\2l.", NodeKind::List), 2U);
  EXPECT_EQ(size("]K\1a(K\1K\2e(e.", NodeKind::List), 3U);
  EXPECT_EQ(size("(K\1K\2d.", NodeKind::Dict), 1U);
  EXPECT_EQ(size("}K\1K\2s(K\1K\2K\3K\4u.", NodeKind::Dict), 3U);
  EXPECT_EQ(size("\x8f(K\1K\2\x90.", NodeKind::Set), 2U);
  EXPECT_EQ(size("(K\1K\2\x91.", NodeKind::FrozenSet), 2U);
}

TEST(PickleReader, TheStack) {
  // DUP and POP, POP_MARK, and a POP that takes a mark.
  const auto pickle = read(
      "K\1K\2"
      "20(NN1(0\x86.");
  ASSERT_EQ(pickle->root_value().size(), 2U);
  EXPECT_EQ(pickle->root_value().item(1).integer(), 2);
}

TEST(PickleReader, MemoIndices) {
  EXPECT_EQ(read_integer("K\7p5\n0g5\n."), 7);
  EXPECT_EQ(read_integer("K\7q\5"
                         "0h\5."),
            7);
  EXPECT_EQ(read_integer("K\7r\xff\xff\xff\xff"
                         "0j\xff\xff\xff\xff."),
            7);
  EXPECT_EQ(read_integer("K\7p18446744073709551615\n0g18446744073709551615\n."),
            7);
  EXPECT_EQ(read_integer(bytes_of("K\7\x94"
                                  "0h\0.")),
            7);
  // A later PUT wins, MEMOIZE counts distinct entries.
  EXPECT_EQ(read_integer("K\1q\5"
                         "0K\2q\5\x94"
                         "0h\1."),
            2);
}

TEST(PickleReader, ObjectsAreCallsAndNothingIsCalled) {
  const auto pickle = read("cos\nsystem\n(Vls\ntR}b(K\1e(K\1K\2u.");
  const Value root = pickle->root_value();
  EXPECT_TRUE(root.is_call_of("os", "system"));
  ASSERT_EQ(root.argument_count(), 1U);
  EXPECT_EQ(root.argument(0).string(), "ls");
  EXPECT_EQ(root.state()->kind(), NodeKind::Dict);
  const Update& build = pickle->update(pickle->node(root.id()).first_update);
  EXPECT_EQ(build.kind, UpdateKind::Build);
  const Update& append = pickle->update(build.next);
  EXPECT_EQ(append.kind, UpdateKind::Append);
  EXPECT_EQ(pickle->update(append.next).kind, UpdateKind::SetItems);
  EXPECT_EQ(pickle->update(append.next).next, 0U);
}

TEST(PickleReader, KindsOfCalls) {
  const auto call = [](const std::string& bytes) {
    const auto pickle = read(bytes);
    EXPECT_TRUE(pickle->root_value().is_call_of("m", "C"));
    return pickle->node(pickle->root()).call;
  };
  EXPECT_EQ(call("cm\nC\n)R."), CallKind::Reduce);
  EXPECT_EQ(call("cm\nC\n)\x81."), CallKind::NewObj);
  EXPECT_EQ(call("cm\nC\n)}\x92."), CallKind::NewObjEx);
  EXPECT_EQ(call("\x8c\1m\x8c\1C\x93)R."), CallKind::Reduce);
  EXPECT_EQ(call("(K\1im\nC\n."), CallKind::Reduce);
  EXPECT_EQ(call("(im\nC\n."), CallKind::NewObj);
  EXPECT_EQ(call("(cm\nC\nK\1o."), CallKind::Reduce);
  EXPECT_EQ(call("(cm\nC\no."), CallKind::NewObj);
}

TEST(PickleReader, PersistentIds) {
  const auto text = read("Pkey\n.");
  EXPECT_EQ(text->root_value().kind(), NodeKind::Persistent);
  EXPECT_EQ(text->text(text->items(text->root())[0]), "key");
  const auto tuple = read("K\1\x85Q.");
  EXPECT_EQ(tuple->root_value().kind(), NodeKind::Persistent);
}

TEST(PickleReader, ACallThatIsDroppedStaysWithItsFirstArgument) {
  // What the pickler writes for a __reduce__ with a state setter.
  const auto pickle = read("cm\nC\n)Rq\1cm\nset\nh\1}\x86R0.");
  const Value root = pickle->root_value();
  ASSERT_TRUE(root.is_call_of("m", "C"));
  const uint32_t update = pickle->node(root.id()).first_update;
  ASSERT_NE(update, 0U);
  EXPECT_EQ(pickle->update(update).kind, UpdateKind::Effect);
  const Value effect(*pickle, pickle->items(pickle->update(update).items)[0]);
  EXPECT_TRUE(effect.is_call_of("m", "set"));
}

TEST(PickleReader, Consumed) {
  uint64_t consumed = 0;
  read_pickle("N.rest", &consumed);
  EXPECT_EQ(consumed, 2U);
}

struct Refusal {
  const char* name;
  std::string bytes;
  ErrorCode code;
  uint64_t offset;
};

class PickleReaderRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(PickleReaderRefusal, HasCodeAndOffset) {
  try {
    read_pickle(GetParam().bytes);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_EQ(error.offset(), GetParam().offset) << error.what();
  }
}

constexpr ErrorCode kCorrupt = ErrorCode::Corrupt;
constexpr ErrorCode kUnsupported = ErrorCode::Unsupported;

INSTANTIATE_TEST_SUITE_P(
    Machine, PickleReaderRefusal,
    testing::Values(
        Refusal{"Empty", "", kCorrupt, 0}, Refusal{"NoStop", "N", kCorrupt, 1},
        Refusal{"Opcode", "N\xff.", kCorrupt, 1},
        Refusal{"After", "N..", kCorrupt, 2},
        Refusal{"PastEnd", bytes_of("NX\xff\xff\xff\xff."), kCorrupt, 1},
        Refusal{"PastEnd8", "\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", kCorrupt,
                0},
        Refusal{"NegativeLong4", "\x8b\xff\xff\xff\xff.", kCorrupt, 0},
        Refusal{"HalfLength", "X\1", kCorrupt, 0},
        Refusal{"LineEnd", "NVabc", kCorrupt, 1},
        Refusal{"Underflow", "N\x86.", kCorrupt, 1},
        Refusal{"UnderflowToMark", "N(\x85.", kCorrupt, 2},
        Refusal{"NoMark", "Nt.", kCorrupt, 1},
        Refusal{"NothingBelowMark", "(Ne.", kCorrupt, 2},
        Refusal{"ProtoLate", "N\x80\2.", kCorrupt, 1},
        Refusal{"ProtoSix", "\x80\6N.", kUnsupported, 0},
        Refusal{"Frame", bytes_of("\x95\3\0\0\0\0\0\0\0N."), kCorrupt, 0},
        Refusal{"Leftover", "NN.", kCorrupt, 2},
        Refusal{"LeftoverMark", "N(.", kCorrupt, 2},
        Refusal{"MemoMissing", "h\1.", kCorrupt, 0},
        Refusal{"MemoHole", "Nq\5h\1.", kCorrupt, 3},
        Refusal{"MemoNumber", "Np-1\n.", kCorrupt, 1},
        Refusal{"Ext1", "\x82\1.", kUnsupported, 0},
        Refusal{"Ext2", "\x83\1\1.", kUnsupported, 0},
        Refusal{"Ext4", "\x84\1\1\1\1.", kUnsupported, 0},
        Refusal{"NextBuffer", "\x97.", kUnsupported, 0},
        Refusal{"ReadonlyBuffer", "\x98.", kUnsupported, 0}),
    [](const auto& refusal) { return refusal.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Values, PickleReaderRefusal,
    testing::Values(
        Refusal{"Int", "NI1x\n.", kCorrupt, 1},
        Refusal{"IntEmpty", "I\n.", kCorrupt, 0},
        Refusal{"IntOctal", "I010\n.", kCorrupt, 0},
        Refusal{"LongSign", "L-L\n.", kCorrupt, 0},
        Refusal{"LongDigits", "L" + std::string(4301, '9') + "L\n.",
                ErrorCode::Limit, 0},
        Refusal{"Float", "F1.5x\n.", kCorrupt, 0},
        Refusal{"FloatNan", "Fnan(1)\n.", kCorrupt, 0},
        Refusal{"FloatEmpty", "F\n.", kCorrupt, 0},
        Refusal{"Utf8Lone", bytes_of("X\1\0\0\0\x80."), kCorrupt, 0},
        Refusal{"Utf8Overlong", "\x8c\2\xc0\x80.", kCorrupt, 0},
        Refusal{"Utf8Overlong3", "\x8c\3\xe0\x80\x80.", kCorrupt, 0},
        Refusal{"Utf8Overlong4", "\x8c\4\xf0\x80\x80\x80.", kCorrupt, 0},
        Refusal{"Utf8TooLarge", "\x8c\4\xf4\x90\x80\x80.", kCorrupt, 0},
        Refusal{"Utf8Short", "\x8c\1\xc3.", kCorrupt, 0},
        Refusal{"Utf8Late",
                "\x8c\x0a"
                "12345678\xc3"
                "a.",
                kCorrupt, 0},
        Refusal{"StringQuotes", "Sabc\n.", kCorrupt, 0},
        Refusal{"StringQuote", "S'\n.", kCorrupt, 0},
        Refusal{"StringHex", "S'\\x4'\n.", kCorrupt, 0},
        Refusal{"StringBackslash", "S'\\'\n.", kCorrupt, 0},
        Refusal{"UnicodeShort", "V\\u12\n.", kCorrupt, 0},
        Refusal{"UnicodeDigits", "V\\u12xy\n.", kCorrupt, 0},
        Refusal{"UnicodeLarge", "V\\U00110000\n.", kCorrupt, 0}),
    [](const auto& refusal) { return refusal.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Objects, PickleReaderRefusal,
    testing::Values(Refusal{"DictOdd", "(Nd.", kCorrupt, 2},
                    Refusal{"SetItemsOdd", "}(Nu.", kCorrupt, 3},
                    Refusal{"AppendToDict", "}Na.", kCorrupt, 2},
                    Refusal{"SetItemOfList", "]NNs.", kCorrupt, 3},
                    Refusal{"AddToFrozenSet", "(\x91(N\x90.", kCorrupt, 4},
                    Refusal{"AppendToTuple", ")Na.", kCorrupt, 2},
                    Refusal{"GlobalUtf8", "c\xff\nx\n.", kCorrupt, 0},
                    Refusal{"StackGlobal", "NN\x93.", kCorrupt, 2},
                    Refusal{"PersIdAscii", "P\xc3\xa9\n.", kCorrupt, 0},
                    Refusal{"CallOfInt", "K\1)R.", kCorrupt, 3},
                    Refusal{"ArgumentsOfCall", "cm\nC\n]R.", kCorrupt, 6},
                    Refusal{"KeywordsOfCall", "cm\nC\n)]\x92.", kCorrupt, 7},
                    Refusal{"ObjOfNothing", "(o.", kCorrupt, 1},
                    Refusal{"BuildOfList", "]}b.", kCorrupt, 2}),
    [](const auto& refusal) { return refusal.param.name; });

void expect_limit(const std::string& bytes, const PickleLimits& limits) {
  try {
    read_pickle(bytes, nullptr, limits);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Limit) << error.what();
  }
}

TEST(PickleReaderLimits, EveryCapIsKept) {
  read_pickle("NN\x86.", nullptr,
              {.max_opcodes = 4, .max_nodes = 2, .max_stack = 2});
  expect_limit("NN\x86.", {.max_opcodes = 3});
  expect_limit("NN\x86.", {.max_nodes = 1});
  expect_limit("NN\x86.", {.max_stack = 1});
  expect_limit("((((", {.max_stack = 3});
  expect_limit("Nq\1q\2q\3.", {.max_memo = 2});
  read_pickle("Nq\1q\1q\1.", nullptr, {.max_memo = 1});
}

TEST(PickleReaderLimits, DepthOfNesting) {
  const auto nested = [](size_t depth) {
    return std::string(depth, ']') + std::string(depth - 1, 'a') + ".";
  };
  read(nested(1000));
  expect_limit(nested(1001), {});
  expect_limit("N" + std::string(1000, '\x85') + ".", {});
}

TEST(PickleReaderLimits, DepthThatGrowsFromTheInside) {
  // Each list gets its next one after it went into the list before.
  std::string bytes = "]p0\n";
  for (int i = 1; i <= 1001; ++i) {
    bytes += "g" + std::to_string(i - 1) + "\n]p" + std::to_string(i) + "\na0";
  }
  expect_limit(bytes + ".", {});
}

TEST(PickleReaderLimits, DepthThroughStates) {
  std::string bytes;
  for (int i = 0; i < 600; ++i) bytes += "cm\nC\n)R";
  expect_limit(bytes + "N" + std::string(600, 'b') + ".", {.max_depth = 600});
}

TEST(PickleReaderLimits, CyclesHaveNoDepth) {
  read("]q\1h\1a.");
  read("}q\1]h\1ah\1s.");
}

TEST(PickleReaderLimits, SharedObjectsAreNotExpanded) {
  // 2^200 leaves to whoever would walk them all.
  std::string bytes = "]";
  for (int i = 0; i < 200; ++i) bytes += "2\x86";
  const auto pickle = read(bytes + ".");
  EXPECT_EQ(pickle->node_count(), 201U);
}

TEST(PickleReaderSweep, EveryTruncationIsAnError) {
  for (const std::string& sample : test::kSamples) {
    for (size_t size = 0; size < sample.size(); ++size) {
      EXPECT_THROW(read(sample.substr(0, size)), Error) << size;
    }
  }
}

TEST(PickleReaderSweep, EveryChangedByteIsAnErrorOrATree) {
  size_t errors = 0;
  for (const std::string& sample : test::kSamples) {
    for (size_t i = 0; i < sample.size(); ++i) {
      for (int flip = 1; flip < 256; ++flip) {
        std::string changed = sample;
        changed[i] = static_cast<char>(changed[i] ^ flip);
        try {
          const auto pickle = read(changed);
          EXPECT_LT(pickle->root(), pickle->node_count());
        } catch (const Error& error) {
          EXPECT_NE(error.code(), ErrorCode::Internal);
          ++errors;
        }
      }
    }
  }
  EXPECT_GT(errors, 1000U);
}

}  // namespace
}  // namespace zckpt
