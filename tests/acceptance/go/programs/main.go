// The programs that the tests run with the Go SDK, in one binary: `programs NAME JSON` prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// found is what a program tells the test.
type found map[string]any

var programs = map[string]func(context.Context) found{
	"anonymous":   anonymous,
	"away":        away,
	"expiry":      expiry,
	"handed":      handed,
	"held":        held,
	"letters":     letters,
	"listed":      listed,
	"many_links":  manyLinks,
	"numbers":     numbers,
	"properties":  properties,
	"refusals":    refusals,
	"removing":    removing,
	"restarted":   restarted,
	"sending":     sending,
	"sessions":    sessions,
	"settlements": settlements,
	"short":       short,
	"sizes":       sizes,
}

// arguments is what the test gives: how to connect, and what each program wants.
type arguments struct {
	Connection string `json:"connection"`
	Endpoint   string `json:"endpoint"`
	WebSocket  bool   `json:"websocket"`
	CA         string `json:"ca"`

	Queue      string  `json:"queue"`
	Large      string  `json:"large"`
	Number     int     `json:"number"`
	Seconds    float64 `json:"seconds"`
	ListenOnly string  `json:"listen_only"`
	SendOnly   string  `json:"send_only"`
	Wrong      string  `json:"wrong"`
}

var given arguments

func main() {
	if err := json.Unmarshal([]byte(os.Args[2]), &given); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	program, known := programs[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "there is no program %q\n", os.Args[1])
		os.Exit(2)
	}
	line := must(json.Marshal(program(context.Background())))
	fmt.Println(string(line))
}
