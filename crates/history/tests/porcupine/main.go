// Judges histories in Quorate's JSON lines with porcupine, the checker that others wrote.
//
//	porcupine [-timeout 20s] FILE...
//
// prints one line a file: {"file":…,"operations":…,"linearizable":true|false|"unknown","seconds":…}
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type line struct {
	Client   int     `json:"client"`
	Key      string  `json:"key"`
	Op       string  `json:"op"`
	Value    *string `json:"value"`
	Expected *string `json:"expected"`
	Matched  *bool   `json:"matched"`
	StartNs  int64   `json:"start_ns"`
	EndNs    *int64  `json:"end_ns"`
	Outcome  string  `json:"outcome"`
}

// What a key holds; texts and registers differ only in what can be done with them.
type state struct {
	exists bool
	value  string
}

func held(value *string) state {
	if value == nil {
		return state{}
	}
	return state{true, *value}
}

// A text that was never appended to is read as nothing or as an empty one.
func same(a, b state) bool {
	return a == b || (a.value == "" && b.value == "")
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		names := []string{}
		for _, operation := range history {
			key := operation.Input.(line).Key
			if _, known := keys[key]; !known {
				names = append(names, key)
			}
			keys[key] = append(keys[key], operation)
		}
		sort.Strings(names)
		parts := [][]porcupine.Operation{}
		for _, name := range names {
			parts = append(parts, keys[name])
		}
		return parts
	},
	Init: func() interface{} { return state{} },
	Step: func(before, input, _ interface{}) (bool, interface{}) {
		now, op := before.(state), input.(line)
		switch op.Op {
		case "read":
			return same(held(op.Value), now), now
		case "write":
			return true, held(op.Value)
		case "delete":
			return true, state{}
		case "append":
			return true, state{true, now.value + *op.Value}
		case "cas":
			matches := held(op.Expected) == now
			after := now
			if matches {
				after = held(op.Value)
			}
			return op.Outcome == "unknown" || matches == *op.Matched, after
		}
		panic("unknown operation " + op.Op)
	},
}

func read(name string) ([]porcupine.Operation, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	operations := []porcupine.Operation{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var op line
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		end := int64(math.MaxInt64)
		if op.Outcome == "ok" {
			end = *op.EndNs
		} else if op.Outcome == "failed" || op.Op == "read" {
			continue
		}
		operations = append(operations, porcupine.Operation{
			ClientId: op.Client, Input: op, Call: op.StartNs, Return: end,
		})
	}
	return operations, lines.Err()
}

func main() {
	timeout := flag.Duration("timeout", 20*time.Second, "per file")
	flag.Parse()
	for _, name := range flag.Args() {
		operations, err := read(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		begin := time.Now()
		result := porcupine.CheckOperationsTimeout(model, operations, *timeout)
		verdict := map[porcupine.CheckResult]interface{}{
			porcupine.Ok: true, porcupine.Illegal: false, porcupine.Unknown: "unknown",
		}[result]
		answer, _ := json.Marshal(map[string]interface{}{
			"file": name, "operations": len(operations), "linearizable": verdict,
			"seconds": time.Since(begin).Seconds(),
		})
		fmt.Println(string(answer))
	}
}
