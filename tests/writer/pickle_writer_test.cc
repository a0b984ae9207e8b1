// SPDX-FileCopyrightText: The zckpt authors
// SPDX-License-Identifier: Apache-2.0
#include "writer/pickle_writer.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "reader/pickle_reader.h"
#include "support/pickle_samples.h"
#include "zckpt/error.h"

namespace zckpt {
namespace {

using test::bytes_of;

std::string rewrite(const std::string& bytes) {
  return write_pickle(*read_pickle(bytes));
}

TEST(PickleWriter, SamplesOfAllProtocolsAreOneTree) {
  const std::string expected = rewrite(test::kSamples[2]);
  for (size_t protocol = 0; protocol < test::kSamples.size(); ++protocol) {
    std::string written = rewrite(test::kSamples[protocol]);
    EXPECT_EQ(written[1], static_cast<char>(protocol < 2 ? 2 : protocol));
    written[1] = 2;
    EXPECT_EQ(written, expected);
  }
}

// What is not shared needs no memo; otherwise these are Python's own bytes.
TEST(PickleWriter, ExactBytes) {
  const std::vector<std::string> unchanged = {
      "N.", "\x88.", "\x89.", "K\xff.", bytes_of("M\0\1."),
      "J\xff\xff\xff\xff.", bytes_of("J\0\0\1\0."),
      bytes_of("\x8a\5\0\0\0\x80\0."), bytes_of("\x8a\5\xff\xff\xff\x7f\xff."),
      bytes_of("\x8a\x08\0\0\0\0\0\0\0\x80."),
      bytes_of("\x8a\x09\0\0\0\0\0\0\0\0\1."),
      bytes_of("G\x7f\xf8\0\0\0\0\0\1."), bytes_of("X\2\0\0\0\xc3\xa9."),
      "C\1\xff.", bytes_of("\x96\1\0\0\0\0\0\0\0\xff."), ").", "N\x85.",
      "NN\x86.", "NNN\x87.", "(NNNNt.", "].", "]Na.", "](NNe.", "}.", "}NNs.",
      "}(NNNNu.", "\x8f.", "\x8f(N\x90.", "(N\x91.", "cm\nC\n.", "cm\nC\n)R.",
      "cm\nC\n)\x81.", "cm\nC\n)}\x92.", "K\1Q.", "cm\nC\n)R}b(NNeNNs(N\x90.",
      // One name that fits no line.
      bytes_of("X\1\0\0\0mX\3\0\0\0a\nb\x93."),
      // Shared objects and cycles.
      bytes_of("](]q\0h\0e."), bytes_of("]q\0h\0a."), bytes_of("}q\0Nh\0s."),
      bytes_of("cm\nC\n)Rq\0h\0b.")};
  for (const std::string& bytes : unchanged) {
    EXPECT_EQ(rewrite("\x80\2" + bytes), "\x80\2" + bytes);
  }
}

TEST(PickleWriter, LongTexts) {
  std::string text(70000, 'x');
  std::string bytes = bytes_of("X\x70\x11\1\0") + text + ".";
  EXPECT_EQ(rewrite(bytes), "\x80\2" + bytes);
  bytes[0] = 'B';
  EXPECT_EQ(rewrite(bytes), "\x80\2" + bytes);
  // An integer of 256 bytes.
  bytes = bytes_of("\x8b\0\1\0\0") + std::string(256, '\x11') + ".";
  EXPECT_EQ(rewrite(bytes), "\x80\2" + bytes);
}

TEST(PickleWriter, BatchesOfAThousand) {
  const std::string thousand(1000, 'N');
  std::string bytes = "](" + thousand + "e(" + thousand + "eNa.";
  EXPECT_EQ(rewrite(bytes), "\x80\2" + bytes);
  bytes = "}(" + thousand + thousand + "uNNs.";
  EXPECT_EQ(rewrite(bytes), "\x80\2" + bytes);
  bytes = "\x8f(" + thousand + "\x90(N\x90.";
  EXPECT_EQ(rewrite(bytes), "\x80\2" + bytes);
}

TEST(PickleWriter, ManySharedObjectsNeedLongMemoIndices) {
  std::string bytes = "(";
  for (int i = 0; i < 300; ++i) bytes += "]2";
  const std::string written = rewrite(bytes + "t.");
  EXPECT_NE(written.find(bytes_of("]r\0\1\0\0j\0\1\0\0")), std::string::npos);
  EXPECT_EQ(rewrite(written), written);
}

TEST(PickleWriter, AnEffectStaysBehindItsObject) {
  const std::string bytes = bytes_of(
      "\x80\2"
      "cm\nC\n)Rq\0"
      "cm\nset\nh\0}\x86R0}b.");
  EXPECT_EQ(rewrite(bytes), bytes);
}

TEST(PickleWriter, CyclicTuples) {
  // t = ([],); t[0].append(t); pickle.dumps(t, 2) of CPython 3.11.
  const std::string one = bytes_of("\x80\2]q\0h\0\x85q\1a0h\1.");
  EXPECT_EQ(rewrite(one), one);
  // t = ([], 1, 2, 3); t[0].append(t); the same.
  const std::string four = bytes_of(
      "\x80\2(]q\0(h\0K\1K\2K\3tq\1aK\1K\2K\3"
      "1h\1.");
  EXPECT_EQ(rewrite(four), four);
}

TEST(PickleWriter, CyclicFrozenSetIsNotWrittenEmpty) {
  // A node n in frozenset([n]), whose state is that frozenset.
  const std::string bytes = bytes_of(
      "\x80\2"
      "cb\nf\nq\0]q\1"
      "cm\nC\n)Rq\2"
      "h\0]q\3h\2a\x85Rq\4"
      "ba0"
      "0h\4.");
  const auto pickle = read_pickle(rewrite(bytes));
  const Value set = pickle->root_value();
  ASSERT_TRUE(set.is_call_of("b", "f"));
  ASSERT_EQ(set.argument(0).size(), 1U);
  EXPECT_EQ(set.argument(0).item(0).state()->id(), set.id());
}

TEST(PickleWriter, TreesThatWereBuilt) {
  Pickle pickle("");
  const NodeId text = pickle.add_text(NodeKind::Str, "key");
  const NodeId list = pickle.add(NodeKind::List);
  const std::array<NodeId, 2> entry = {text, list};
  pickle.append_items(list, std::array<NodeId, 1>{text});
  pickle.set_root(pickle.add_items(NodeKind::Dict, entry));
  EXPECT_EQ(write_pickle(pickle), bytes_of("\x80\2}X\3\0\0\0keyq\0]h\0as."));
}

TEST(PickleWriter, ATupleOfNothingButItselfIsUnsupported) {
  Pickle pickle("");
  const NodeId tuple = pickle.add(NodeKind::Tuple);
  pickle.append_items(tuple, std::array<NodeId, 1>{tuple});
  pickle.set_root(tuple);
  try {
    write_pickle(pickle);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  }
}

TEST(PickleWriter, EntangledTuplesDoNotMultiplyTheOutput) {
  // t = ([], [], ...), with t in each of the lists: every list would hold the
  // rest of t once more.
  Pickle pickle("");
  const NodeId tuple = pickle.add(NodeKind::Tuple);
  for (int i = 0; i < 20'000; ++i) {
    const NodeId list =
        pickle.add_items(NodeKind::List, std::array<NodeId, 1>{tuple});
    pickle.append_items(tuple, std::array<NodeId, 1>{list});
  }
  pickle.set_root(tuple);
  EXPECT_THROW(write_pickle(pickle), Error);
}

TEST(PickleWriter, DeepTreesNeedNoRecursion) {
  Pickle pickle("");
  NodeId id = pickle.add(NodeKind::None);
  for (int i = 0; i < 1'000'000; ++i) {
    id = pickle.add_items(NodeKind::List, std::array<NodeId, 1>{id});
  }
  pickle.set_root(id);
  EXPECT_EQ(write_pickle(pickle).size(), 2'000'000U + 4);
}

TEST(PickleWriter, WhatAChangedByteMakesIsWrittenFaithfully) {
  for (const std::string& sample : test::kSamples) {
    for (size_t i = 0; i < sample.size(); ++i) {
      for (int flip = 1; flip < 256; flip <<= 1) {
        std::string changed = sample;
        changed[i] = static_cast<char>(changed[i] ^ flip);
        std::string written;
        try {
          written = rewrite(changed);
        } catch (const Error&) {
          continue;
        }
        EXPECT_EQ(rewrite(written), written) << i << ' ' << flip;
      }
    }
  }
}

}  // namespace
}  // namespace zckpt
