import { render } from "preact";
import { recognise, watchHealth } from "./api/client";
import { App } from "./app";
import "./style.css";
import "./ui/theme";

const root = document.getElementById("app");
if (root) render(<App />, root);
void recognise();
void watchHealth();
